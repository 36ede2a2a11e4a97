package evidence

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
)

// distServe compares with DistServe (Y. Zhong et al., OSDI '24).
type distServe struct{}

func (distServe) Name() string  { return "distserve" }
func (distServe) Title() string { return "1. DistServe's applications on four A100s" }

// column is a way of serving.
type column struct {
	placement
	fabric
}

func (c column) String() string {
	if c.placement == aggregated {
		return string(c.placement)
	}
	return fmt.Sprintf("%s, %s", c.placement, c.fabric.name)
}

// Run measures.
func (distServe) Run(ctx context.Context, o Options) (*Result, error) {
	d, err := newDrawn(o)
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
		{aggregated, free}, {disaggregated, free}, {disaggregated, nvLink}, {disaggregated, ethernet}, {auto, nvLink}, {auto, ethernet},
	}
	s, rounds := rateSearch{within: 0.02, requests: 300}, 3
	if o.Small {
		rows, columns = rows[:1], []column{{aggregated, free}, {disaggregated, nvLink}, {auto, nvLink}}
		s, rounds = rateSearch{within: 0.05, requests: 200}, 2
	}
	g := newGoodput(rows, columns, rounds)
	if err := g.measure(ctx, o, s); err != nil {
		return nil, err
	}
	r := &Result{Tables: []Table{g.table()}}
	for i, row := range rows {
		for _, of := range []placement{disaggregated, auto} {
			split := g.rates(i, column{of, nvLink})
			if over := ratios(split, g.rates(i, column{aggregated, free})); len(over) > 0 {
				r.Ratios = append(r.Ratios, newRatio(fmt.Sprintf("%s: goodput of %s over aggregated", row, of), over, "up to 7.4, over vLLM of 2023"))
			}
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
		"DistServe's simulator searches for the highest rate a GPU at which 90% of the requests meet bounds on TTFT and TPOT, by halving a range. Here the same search runs on its coefficients of A100s (`docs/profiles/a100-opt-*.json`) and its KV memory, but on Tandem's routers, schedulers and transfers. Each figure is that of the best layout of all GPUs of the row.",
		"Lengths: of ShareGPT there are none at hand; the chatbot has those of Azure's conversations that fit into OPT's 2,048 tokens (means 754 and 232; the paper's ShareGPT: 755.5 and 200.3). HumanEval and LongBench are drawn around the paper's means (171.3 and 98.2; 1,738.3 and 90.7; their spread is assumed). Of OPT-175B no coefficients are published, and its weights do not fit into four A100s: its row is left out. OPT-66B is split on eight A100s as well: of four, each half has two, and prefill with two is too slow for the TTFT.",
	}
	return r, nil
}

// goodput is what a search found by row, column and round.
type goodput struct {
	rows    []application
	columns []column
	rounds  int
	found   []best
}

func newGoodput(rows []application, columns []column, rounds int) *goodput {
	return &goodput{rows, columns, rounds, make([]best, len(rows)*len(columns)*rounds)}
}

func (g *goodput) measure(ctx context.Context, o Options, s rateSearch) error {
	return each(ctx, len(g.found), func(i int) (err error) {
		round, cell := i%g.rounds, i/g.rounds
		row, col := g.rows[cell/len(g.columns)], g.columns[cell%len(g.columns)]
		s := s
		s.most = row.model.most
		if g.found[i], err = row.best(ctx, o, row.model.layouts(row.gpus, col.placement), col.placement, col.fabric, s, round); err != nil {
			return fmt.Errorf("%s, %s: %w", row, col, err)
		}
		o.say(fmt.Sprintf("distserve: %s, %s, round %d: %s a GPU with %s", row, col, round+1, rate(g.found[i].rate), g.found[i].layout))
		return nil
	})
}

// of is what was found for a row in a column, by round.
func (g *goodput) of(row int, c column) []best {
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
		Title: "Goodput, requests a second and GPU; in brackets the layout", Command: "tandem bench evidence --section distserve",
		Header: []string{"application", "A100s", "TTFT, TPOT at p90"},
		Note:   fmt.Sprintf("Means of %d rounds with other arrivals and lengths; the layout is that of the first. \"Whole prompts\": decode workers compute a prompt in one step (`--decode-chunk-tokens`, `--decode-step-budget 0s`). \"Free\" is without the cost of transfers, as in DistServe's simulator; 25 Gbit/s connects its nodes.", g.rounds),
	}
	for _, c := range g.columns {
		t.Header = append(t.Header, c.String())
	}
	for i, row := range g.rows {
		cells := []string{row.name, strconv.Itoa(row.gpus), seconds(row.ttft) + ", " + seconds(row.tpot)}
		for _, c := range g.columns {
			found := g.of(i, c)
			cell := rate(mean(g.rates(i, c)))
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
