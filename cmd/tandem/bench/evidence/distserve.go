package evidence

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// distServe compares with DistServe (Y. Zhong et al., OSDI '24).
type distServe struct{}

func (distServe) Name() string  { return "distserve" }
func (distServe) Title() string { return "DistServe's applications on A100s" }

// What DistServe gives as its best ratios.
const (
	paperRate = "up to 7.4, over DeepSpeed-MII; 4.6, over vLLM"
	paperSLO  = "up to 12.6"
)

// column is a way of serving.
type column struct {
	placement
	fabric
	// chunked: only in chunks, as by default, and not whole where that is better.
	chunked bool
}

func (c column) String() string {
	switch {
	case c.chunked:
		return string(c.placement) + ", in chunks"
	case c.placement == aggregated:
		return string(c.placement)
	}
	return fmt.Sprintf("%s, %s", c.placement, c.fabric.name)
}

// The columns that are compared.
var (
	aggregatedColumn    = column{aggregated, free, false}
	disaggregatedColumn = column{disaggregated, nvLink, false}
	autoColumn          = column{auto, nvLink, false}
)

// Run measures.
func (distServe) Run(ctx context.Context, o Options) (*Result, error) {
	d, err := newDrawnTraces(o)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	chat, err := d.azure("azure-2048.csv", d.fits.AzureConversation2048)
	if err != nil {
		return nil, err
	}
	rows := []application{
		{name: "chatbot, OPT-13B", model: opt13B, gpus: 4, lengths: lengths(chat), ttft: 0.25, tpot: 0.1},
		{name: "chatbot, OPT-66B", model: opt66B, gpus: 4, lengths: lengths(chat), ttft: 0.4, tpot: 0.1},
		{name: "chatbot, OPT-66B", model: opt66B, gpus: 8, lengths: lengths(chat), ttft: 0.4, tpot: 0.1},
		{name: "code completion, OPT-66B", model: opt66B, gpus: 8, lengths: humanEval, ttft: 0.125, tpot: 0.2},
		{name: "summarization, OPT-66B", model: opt66B, gpus: 8, lengths: longBench, ttft: 15, tpot: 0.15},
	}
	columns := []column{
		aggregatedColumn, {aggregated, free, true}, {disaggregated, free, false}, disaggregatedColumn, {disaggregated, ethernet, false}, autoColumn,
	}
	requests, rounds := 200, 2
	if o.Small {
		rows, columns = rows[:1], []column{aggregatedColumn, disaggregatedColumn, autoColumn}
		requests = 150
	}
	g := newGoodput(rows, columns, rounds)
	if err := g.measure(ctx, o, requests); err != nil {
		return nil, err
	}
	r := &Result{Tables: []Table{g.table()}}
	for i, row := range rows {
		for _, of := range []column{disaggregatedColumn, autoColumn} {
			r.addRatio(fmt.Sprintf("%s: goodput of %s over aggregated", row, of.placement), g.rates(i, of), g.rates(i, aggregatedColumn), paperRate)
		}
	}
	if o.Small {
		return r, nil
	}
	for _, more := range []func(context.Context, Options, *goodput, *Result) error{
		reproduceDistServe, tightestSLOs, sweepsOfDistServe, compareAzure,
	} {
		if err := more(ctx, o, g, r); err != nil {
			return nil, err
		}
	}
	r.Intro = []string{
		"DistServe's simulator searches for the highest rate a GPU at which 90% of the requests meet bounds on TTFT and TPOT, by halving a range. Here the same search runs on its coefficients of A100s (`docs/profiles/a100-opt-*.json`) and its KV memory, but on Tandem's routers, schedulers and transfers. Each figure is that of the best layout of all GPUs of the row. A rate is tried with 200 requests (300 in the search of its README), after 40 s that do not count: queues have grown by then, and routers have learned.",
		"Lengths: the chatbot has those of Azure's conversations that fit into OPT's 2,048 tokens (means 754 and 232; the paper's ShareGPT: 755.5 and 200.3). HumanEval and LongBench are drawn around the paper's means (171.3 and 98.2; 1,738.3 and 90.7; their spread is assumed). OPT-175B is left out: without pipelines it needs eight A100s at least, and the coefficients for eight that an earlier version of DistServe's profile had are no step times (a token of a prompt takes 0.007 ms, where on four GPUs it takes 0.4, and a sequence more makes a step of decoding shorter). OPT-66B is split on eight A100s as well: of four, each half has two, and prefill with two is too slow for the TTFT.",
	}
	r.Notes = []string{
		"Why separate workers lose here, where DistServe has up to 7.4 times (rate) and 12.6 times (SLO): it compares with vLLM and DeepSpeed-MII of its time, whose instances compute prompts before tokens, in order, or in chunks, refuse nothing, and have slower kernels: by its own profiles a prompt of 755 tokens takes OPT-13B 142 ms on vLLM and 99 ms on its engine. Tandem's `aggregated` has the same step times and the same choice of layouts as `disaggregated`, its router spreads requests over instances by predicted time, and it refuses on arrival what cannot be in time.",
		"TPOT is the mean over an answer. A prompt that is computed whole delays the tokens of others, but hardly changes the mean of a long answer: DistServe's SLO forgives what `aggregated` does worst. With prompts in chunks, as by default, tokens come evenly, but this profile charges each chunk its fixed time.",
		"DistServe's evaluation has up to 32 GPUs and pipelines; here there are four or eight GPUs and tensor parallelism only.",
		"Checked on 2026-11-27 against DistServe's repository: 1.56 and its layout (`simdistserve/README.md`); 7.4 (the notebook of its evaluation prints 7.36 over DeepSpeed-MII and 4.6, 2.75 and 1.99 over vLLM); coefficients and KV memory (`simdistserve/estimators/profile_data`); how its LongBench prompts are made: cut to 1,900 to 2,040 tokens. The first 193 ShareGPT requests that it publishes have means of 774 and 176 tokens. Its script for the ablation has the bounds above but for two: 200 ms for OPT-13B, and 1.5 s for LongBench. Not found again: the paper's means of lengths, and what it is 12.6 times tighter than.",
	}
	return r, nil
}

// goodput is what a search found by row, column and round.
type goodput struct {
	rows    []application
	columns []column
	rounds  int
	found   []found
}

func newGoodput(rows []application, columns []column, rounds int) *goodput {
	return &goodput{rows, columns, rounds, make([]found, len(rows)*len(columns)*rounds)}
}

func (g *goodput) measure(ctx context.Context, o Options, requests int) error {
	return each(ctx, len(g.found)/g.rounds, func(cell int) error {
		row, col := g.rows[cell/len(g.columns)], g.columns[cell%len(g.columns)]
		s := rateSearch{most: row.model.most, within: row.model.within, step: row.model.within}
		on := deployment{placement: col.placement, fabric: col.fabric, requests: requests}
		layouts := slices.DeleteFunc(row.model.layouts(row.gpus, col.placement), func(l layout) bool { return col.chunked && l.whole })
		found, err := row.rounds(ctx, o, on, layouts, s, g.rounds)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", row, col, err)
		}
		for round, f := range found {
			o.say(fmt.Sprintf("distserve: %s, %s, round %d: %s a GPU with %s", row, col, round+1, rate(f.rate), f.layout))
		}
		copy(g.found[cell*g.rounds:], found)
		return nil
	})
}

// of is what was found for a row in a column, by round.
func (g *goodput) of(row int, c column) []found {
	at := (row*len(g.columns) + slices.Index(g.columns, c)) * g.rounds
	return g.found[at : at+g.rounds]
}

func (g *goodput) rates(row int, c column) (all []float64) {
	for _, f := range g.of(row, c) {
		all = append(all, f.rate)
	}
	return all
}

func (g *goodput) table() Table {
	t := Table{
		Title:  "Goodput, requests a second and GPU; in brackets the layout",
		Header: []string{"application", "A100s", "TTFT, TPOT at p90"},
		Note:   fmt.Sprintf("Means of %d rounds with other arrivals and lengths; the layout is that of the first. \"<\": no more than the search can tell. \"Whole prompts\": all workers compute a prompt in one step, also beside sequences that decode (`--decode-chunk-tokens`, `--decode-step-budget 0s`, and the same for prefill workers). \"Free\" is without the cost of transfers, as in DistServe's simulator; 25 Gbit/s connects its nodes.", g.rounds),
	}
	for _, c := range g.columns {
		t.Header = append(t.Header, c.String())
	}
	for i, row := range g.rows {
		cells := []string{row.name, strconv.Itoa(row.gpus), seconds(row.ttft) + ", " + seconds(row.tpot)}
		for _, c := range g.columns {
			found := g.of(i, c)
			cell := rate(stats.Mean(g.rates(i, c)))
			if least := 2 * row.model.within; stats.Mean(g.rates(i, c)) > 0 && stats.Mean(g.rates(i, c)) < least { // no more than the search can tell
				cell = "< " + report.Digits(least)
			}
			if found[0].rate > 0 {
				cell += fmt.Sprintf(" (%s)", found[0].layout)
			}
			cells = append(cells, cell)
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

// humanEval and longBench have the means of DistServe's figure 7; their spread is assumed.
const (
	humanEval = "  prompt-tokens: lognormal:171.3,85\n  output-tokens: lognormal:98.2,50\n"
	longBench = "  prompt-tokens: normal:1738.3,150\n  output-tokens: lognormal:90.7,60\n"
)

// azureTrace is the file of Azure's conversations in a folder of traces.
func azureTrace(o Options) string { return filepath.Join(o.Traces, "AzureLLMInferenceTrace_conv.csv") }
