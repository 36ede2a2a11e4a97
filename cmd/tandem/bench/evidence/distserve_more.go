package evidence

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/evidence/workloads"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// reproduceDistServe runs the search that its README shows: OPT-13B, 200 ms and 100 ms, at most
// four A100s, 300 requests, rates up to 5 a GPU, until 0.25 are left. It finds 1.56 requests/s
// a GPU with one prefill instance of TP2 and one decode instance of TP1.
func reproduceDistServe(ctx context.Context, o Options, g *goodput, r *Result) error {
	a := g.rows[0]
	a.ttft = 0.2
	s := rateSearch{most: 5, within: 0.25, step: 0.25}
	var split, joint []layout
	for _, degree := range []int{1, 2, 4} {
		for _, whole := range []bool{true, false} {
			joint = append(joint, layout{[]group{a.model.workers("decode", 1, degree)}, whole})
		}
		for _, decode := range []int{1, 2, 4} {
			if degree+decode <= a.gpus {
				split = append(split, layout{[]group{a.model.workers("prefill", 1, degree), a.model.workers("decode", 1, decode)}, false})
			}
		}
	}
	cells := []struct {
		name    string
		p       placement
		layouts []layout
		keeps   bool
	}{
		{"disaggregated, nothing is refused", disaggregated, split, true},
		{"disaggregated", disaggregated, split, false},
		{"aggregated, nothing is refused", aggregated, joint, true},
		{"aggregated", aggregated, joint, false},
	}
	const rounds = 2
	all := make([][]found, len(cells))
	if err := each(ctx, len(cells), func(i int) (err error) {
		c, a := cells[i], a
		a.keeps = c.keeps
		all[i], err = a.rounds(ctx, o, deployment{placement: c.p, fabric: free, requests: 300}, slices.Clone(c.layouts), s, rounds)
		return err
	}); err != nil {
		return err
	}
	t := Table{
		Title:  "The search of DistServe's README",
		Header: []string{"OPT-13B, TTFT 200ms, TPOT 100ms, one instance of each kind on at most four A100s", "requests a second and GPU, by round", "layout of the first"},
		Rows:   [][]string{{"DistServe's simulator, ShareGPT's lengths", "1.56", "1 prefill TP2 + 1 decode TP1"}},
	}
	for i, c := range cells {
		first, second := all[i][0], all[i][1]
		t.Rows = append(t.Rows, []string{"Tandem, " + c.name, fmt.Sprintf("%s, %s", rate(first.rate), rate(second.rate)), first.layout.String()})
	}
	r.Tables = append(r.Tables, t)
	return nil
}

// tightestSLOs finds how much tighter the bounds can be at the rate that serving both phases
// together just reaches with the bounds of the table.
func tightestSLOs(ctx context.Context, o Options, g *goodput, r *Result) error {
	columns := []column{aggregatedColumn, disaggregatedColumn, autoColumn}
	const requests, rounds = 200, 2
	scales := make([]float64, len(g.rows)*len(columns)*rounds)
	if err := each(ctx, len(scales), func(i int) (err error) {
		round, c, row := i%rounds, columns[i/rounds%len(columns)], i/rounds/len(columns)
		a, at, with := g.rows[row], stats.Mean(g.rates(row, columns[0])), g.of(row, c)[0]
		if at == 0 || with.rate == 0 {
			return nil
		}
		scales[i], err = a.tightest(ctx, o, deployment{with.layout, c.placement, c.fabric, requests}, round, at)
		return err
	}); err != nil {
		return err
	}
	t := Table{
		Title:  "The tightest SLO at the rate of aggregated",
		Header: []string{"application", "requests a second and GPU"},
		Note:   "Scales of both bounds at which 90% of the requests are still in time; below 1 is tighter. None: not even with bounds four times as loose. Each has the layout of its round in the first table, at the mean rate of the rounds: in a round that had less, a scale is above 1. DistServe gives 12.6 times tighter as its best.",
	}
	for _, c := range columns {
		t.Header = append(t.Header, c.String())
	}
	for i, row := range g.rows {
		cells := []string{row.String(), rate(stats.Mean(g.rates(i, columns[0])))}
		of := func(c int) []float64 { at := (i*len(columns) + c) * rounds; return scales[at : at+rounds] }
		for c := range columns {
			cells = append(cells, scaleText(of(c)))
		}
		t.Rows = append(t.Rows, cells)
		for c, name := range []placement{"", disaggregated, auto} {
			if c > 0 {
				r.addRatio(fmt.Sprintf("%s: SLO of %s, times tighter than aggregated", row, name), of(0), of(c), paperSLO)
			}
		}
	}
	r.Tables = append(r.Tables, t)
	return nil
}

// scaleText is the mean of the rounds' scales, or each of them if some rounds had none.
func scaleText(rounds []float64) string {
	if !slices.Contains(rounds, 0) {
		return rate(stats.Mean(rounds))
	}
	var all []string
	for _, scale := range rounds {
		all = append(all, rate(scale))
	}
	return strings.Join(slices.Compact(all), ", ")
}

// sweepsOfDistServe draws its two figures for the first application: the share of requests in
// time over the rate, and over the scale of the SLO.
func sweepsOfDistServe(ctx context.Context, o Options, g *goodput, r *Result) error {
	const requests, points = 200, 9
	a := g.rows[0]
	columns := []column{aggregatedColumn, disaggregatedColumn, autoColumn}
	at := stats.Mean(g.rates(0, columns[0]))
	byRate, byScale := make([]curve, len(columns)), make([]curve, len(columns))
	for i, c := range columns {
		for k := range points {
			byRate[i].x = append(byRate[i].x, at*2*float64(k+1)/points)
			byScale[i].x = append(byScale[i].x, 0.25*math.Pow(8, float64(k)/(points-1)))
		}
		byRate[i].name, byScale[i].name = string(c.placement), string(c.placement)
		byRate[i].y, byScale[i].y = make([]float64, points), make([]float64, points)
	}
	if err := each(ctx, 2*points*len(columns), func(i int) error {
		k, c := i/2/len(columns), i/2%len(columns)
		to, perGPU, scale := &byRate[c], byRate[c].x[k], 1.0
		if i%2 == 1 {
			to, perGPU, scale = &byScale[c], at, byScale[c].x[k]
		}
		on := deployment{g.of(0, columns[c])[0].layout, columns[c].placement, columns[c].fabric, requests}
		share, err := a.share(ctx, o, on, 0, perGPU, scale)
		to.y[k] = 100 * share
		return err
	}); err != nil {
		return err
	}
	r.Pictures = append(r.Pictures,
		Picture{"evidence-distserve-rate", "Share of requests in time over the rate", chart{
			title: a.name + ": requests in time over the rate", xLabel: "requests a second and GPU", yLabel: "in time, %", curves: byRate, line: 90}.svg()},
		Picture{"evidence-distserve-slo", "Share of requests in time over the scale of the SLO", chart{
			title: fmt.Sprintf("%s: requests in time over the SLO, at %.3g requests/s a GPU", a.name, at), xLabel: "scale of both bounds", yLabel: "in time, %", curves: byScale, line: 90, logX: true}.svg()})
	return nil
}

// compareAzure runs the first application with lengths drawn from the fit and from the trace,
// at the same rate and arrivals.
func compareAzure(ctx context.Context, o Options, g *goodput, r *Result) error {
	if o.Traces == "" {
		return nil
	}
	all, err := workloads.ReadTrace(azureTrace(o))
	if err != nil {
		return err
	}
	d, err := newDrawnTraces(o)
	if err != nil {
		return err
	}
	defer d.Close()
	recorded, err := d.write("recorded.csv", func(w io.Writer) error { return workloads.WriteAzure(w, all, optContext) })
	if err != nil {
		return err
	}
	fitted := g.rows[0]
	traced := fitted
	traced.lengths = lengths(recorded)
	const requests = 2000
	of := g.of(0, disaggregatedColumn)[0]
	figures := make([]report.Figures, 2)
	if err := each(ctx, 2, func(i int) error {
		a := []application{fitted, traced}[i]
		t, err := newTrial(o.Profiles, a.scenario(o, deployment{of.layout, disaggregated, nvLink, requests}, 1))
		if err == nil {
			figures[i], err = t.at(ctx, 0.8*of.rate*float64(a.gpus), 0)
		}
		return err
	}); err != nil {
		return err
	}
	r.FromTraces = append(r.FromTraces, compareRuns(fmt.Sprintf("The chatbot on OPT-13B, disaggregated, at 80%% of its goodput: lengths of the fit and of the trace, %d requests", requests), &figures[0], &figures[1]))
	return nil
}

// compareRuns is a table of two runs, with the fit and with the trace.
func compareRuns(title string, fit, traced *report.Figures) Table {
	t := Table{Title: title, Header: []string{"figure", "fit", "trace", "difference"}}
	add := func(name string, a, b float64) {
		t.Rows = append(t.Rows, []string{name, report.Digits(a), report.Digits(b), fmt.Sprintf("%+.1f%%", 100*(a/b-1))})
	}
	add("prompt, mean tokens", fit.PromptTokensMean, traced.PromptTokensMean)
	add("answer, mean tokens", fit.OutputTokensMean, traced.OutputTokensMean)
	for _, p := range []string{"p50", "p90", "p99"} {
		if a, b := fit.TTFT.Percentile(p), traced.TTFT.Percentile(p); a != nil && b != nil {
			add("TTFT "+p+", ms", *a, *b)
		}
		if a, b := fit.TPOT.Percentile(p), traced.TPOT.Percentile(p); a != nil && b != nil {
			add("TPOT "+p+", ms", *a, *b)
		}
	}
	add("in time, %", 100*fit.SLOAttainment, 100*traced.SLOAttainment)
	return t
}
