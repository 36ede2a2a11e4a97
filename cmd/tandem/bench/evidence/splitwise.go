package evidence

import (
	"context"
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// splitwise compares with Splitwise (P. Patel et al., ISCA '24).
type splitwise struct{}

func (splitwise) Name() string  { return "splitwise" }
func (splitwise) Title() string { return "Splitwise's machines at equal cost" }

// splitwiseDesign is a way to spend money.
type splitwiseDesign struct {
	name      string
	placement placement
	layouts   []layout
}

// Run measures.
func (splitwise) Run(ctx context.Context, o Options) (*Result, error) {
	d, err := newDrawnTraces(o)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	path, err := d.azure("azure.csv", d.fits.AzureConversation)
	if err != nil {
		return nil, err
	}
	empty, err := a100.read(o)
	if err != nil {
		return nil, err
	}
	dollars, requests, within, rounds := 305.0, 350, 0.03, 2
	if o.Small {
		dollars, requests, within, rounds = 155, 300, 0.05, 3
	}
	aggregatedOn := func(m machine) []layout {
		of := []group{{"decode", int(dollars / m.cost), m}}
		return []layout{{of, true}, {of, false}}
	}
	designs := []splitwiseDesign{
		{"A100, aggregated", aggregated, aggregatedOn(a100)},
		{"H100, aggregated", aggregated, aggregatedOn(h100)},
		{"A100 and A100, disaggregated", disaggregated, splits(dollars, a100, a100, disaggregated)},
		{"H100 and H100, disaggregated", disaggregated, splits(dollars, h100, h100, disaggregated)},
		{"H100 and A100, disaggregated", disaggregated, splits(dollars, h100, a100, disaggregated)},
		{"H100 and H100, auto", auto, splits(dollars, h100, h100, auto)},
		{"H100 and A100, auto", auto, splits(dollars, h100, a100, auto)},
	}
	if o.Small {
		designs = []splitwiseDesign{designs[0], designs[1], designs[4]}
	}
	all := make([]found, len(designs)*rounds) // rates for 100 dollars an hour
	if err := each(ctx, len(all), func(i int) error {
		design, round, best := designs[i/rounds], i%rounds, &all[i]
		var err error
		best.layout, best.rate, err = bestOf(design.layouts, rateSearch{mostForHundred, within * 5, within}, func(l layout, rate float64) (bool, error) {
			met, err := meetsSplitwise(ctx, o, l, design.placement, requests, lengths(path), rate*l.cost()/100, round, empty)
			if err != nil {
				err = fmt.Errorf("%s, %s: %w", design.name, l, err)
			}
			return met, err
		})
		if err != nil {
			return err
		}
		o.say(fmt.Sprintf("splitwise: %s, round %d: %s requests/s for $100 an hour with %s", design.name, round+1, rate(best.rate), best.layout))
		return nil
	}); err != nil {
		return nil, err
	}
	t := Table{
		Title:  fmt.Sprintf("Highest rate within Splitwise's SLO, for about $%.0f an hour", dollars),
		Header: []string{"machines", "layout of the first round", "requests/s, mean", "dollars an hour", "requests/s for $100 an hour, by round"},
		Note:   "Llama 2 70B, eight GPUs a machine, lengths of Azure's conversations. SLO: how many times longer than on an empty machine with A100s, at p50, p90 and p99: TTFT 2, 3 and 6, time between tokens and whole request 1.25, 1.5 and 5. $17.60 and $38 an hour are Splitwise's prices. 25 GB/s between machines.",
	}
	by := make([][]float64, len(designs))
	best := map[placement]int{} // designs
	for i, design := range designs {
		var texts []string
		for _, f := range all[i*rounds : (i+1)*rounds] {
			by[i], texts = append(by[i], f.rate), append(texts, rate(f.rate))
		}
		first := all[i*rounds]
		cells := []string{design.name, "none", "none", "", strings.Join(texts, ", ")}
		if first.rate > 0 {
			cells = []string{design.name, first.layout.String(), rate(stats.Mean(by[i]) * first.layout.cost() / 100), fmt.Sprintf("%.0f", first.layout.cost()), strings.Join(texts, ", ")}
		}
		t.Rows = append(t.Rows, cells)
		if b, known := best[design.placement]; !known || stats.Mean(by[i]) > stats.Mean(by[b]) {
			best[design.placement] = i
		}
	}
	r := &Result{Tables: []Table{t}}
	for _, p := range []placement{disaggregated, auto} {
		if of, known := best[p]; known {
			r.addRatio(fmt.Sprintf("requests a dollar, best %s over best aggregated", p), by[of], by[best[aggregated]], "1.4 times at 80% of the cost: 1.75")
		}
	}
	if !o.Small {
		fits, err := fitErrors(o)
		if err != nil {
			return nil, err
		}
		r.Tables = append(r.Tables, fits)
	}
	r.Notes = []string{
		"The SLO is not sent with requests, and most of it bounds medians, which the router does not know. `auto` counts what an answer on a prefill worker takes from the prompts that come while it lasts ([decision 0045](decisions/0045-tokens-in-time.md#since-then)).",
		splitwiseChecked,
	}
	r.Intro = []string{"Step times are fitted to Splitwise's own measurements. As its clusters are many times larger, only the price is kept: each row spends about the same."}
	return r, nil
}

// splitwiseChecked is what of Splitwise's figures was checked, and against what.
const splitwiseChecked = "Checked on 2026-11-27: the SLO, and that it is relative to eight A100s (`notebooks/plots.ipynb` of Splitwise's simulator); prices ($2.21 and $4.76 for an hour of a GPU there, $17.68 and $38.08 for a machine); 1.4 times the throughput at 20% lower cost, or 2.35 times at the same cost and power (the paper's page at Microsoft Research). Power, for which the simulator has 24.8 and 44 as relative figures, is not compared here."

// mostForHundred is more than any machines do for 100 dollars an hour, requests a second.
const mostForHundred = 14

// meetsSplitwise tells whether a layout keeps Splitwise's SLO at a rate, requests a second.
func meetsSplitwise(ctx context.Context, o Options, l layout, mode placement, requests int, traffic string, rate float64, round int, empty *latency.Profile) (bool, error) {
	t, err := newTrial(o.Profiles, splitwiseScenario(o, l, mode, requests, traffic))
	if err != nil {
		return false, err
	}
	if _, err := t.at(ctx, rate, round); err != nil {
		return false, err
	}
	s, all := slowdownsOf(t.last, empty)
	return all && s.met(), nil
}

// fitErrors is how far the profiles are from the measurements.
func fitErrors(o Options) (Table, error) {
	t := Table{
		Title: "Step times beside Splitwise's measurements", Command: "go test ./cmd/tandem/bench/evidence/workloads -run Splitwise -traces DIR",
		Header: []string{"machine", "steps", "kinds measured", "median error", "p90", "largest"},
	}
	for _, m := range []machine{a100, h100} {
		p, err := m.read(o)
		if err != nil {
			return t, err
		}
		for _, kind := range []string{"prefill", "decode"} {
			e := p.Errors[kind]
			t.Rows = append(t.Rows, []string{m.name, kind, fmt.Sprint(e.Points), percent(e.Median), percent(e.P90), percent(e.Max)})
		}
	}
	return t, nil
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }
