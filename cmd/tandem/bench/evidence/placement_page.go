package evidence

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// mapResult is what the page says of the map.
func mapResult(all []mapped, options Options, o objective, prompts, outputs []int, bandwidths []float64) *Result {
	table := Table{
		Title:  "Capacity, requests a second",
		Header: []string{"network", "prompt/answer, tokens", "prefill + decode workers", "`aggregated`", "`disaggregated`", "`auto`", "better placement", "better by", "`auto` over the better"},
		Note:   "None: less than a fiftieth of where the search begins, which is near the other networks' figure. It counts as 0 in the mean where another round has more.",
	}
	worst, best := all[0], all[0]
	pays := 0
	for _, m := range all {
		better, by := "disaggregated", m.paysOff()
		switch {
		case math.IsNaN(by):
			better = "none"
		case by < 1:
			better, by = "aggregated", 1/by
		default:
			pays++
		}
		if worst.better() == 0 || m.ofBetter() < worst.ofBetter() {
			worst = m
		}
		if best.aggregated == 0 || m.aggregated > 0 && m.ofAggregated() > best.ofAggregated() {
			best = m
		}
		table.Rows = append(table.Rows, []string{
			gigabits(m.bandwidth), fmt.Sprintf("%d/%d", m.prompt, m.output), fmt.Sprintf("%d + %d", m.prefill, mapWorkers-m.prefill),
			rate(m.aggregated), rate(m.disaggregated), rate(m.auto), better, times(by), fixed(3, m.ofBetter()),
		})
	}
	effort := fmt.Sprintf("A rate is tried for %s.", options.mapEffort())
	if !options.Long {
		effort += fmt.Sprintf(" With `--long` it is tried for %s; then `auto` over the better differs less from round to round.", Options{Long: true}.mapEffort())
	}
	r := &Result{
		Intro: []string{
			fmt.Sprintf("Capacity, the highest rate at which 90%% of the requests meet the SLO, of %d A100s that serve OPT-13B. `aggregated` has %d workers that do both phases; the others are split by the time that prompts and answers take. Prompts and answers have one length at each point. A request meets it if its TTFT is below %v and its TPOT below %v.", mapWorkers, mapWorkers, o.ttft, o.tpot),
		},
		Tables: []Table{table},
		Notes: []string{
			fmt.Sprintf("Disaggregation serves more at %d of %d points. The network has to carry the KV of prompts, 0.8 MB a token here, as fast as they are computed. The sooner tokens must come, the less decoding leaves of a step for prompts on workers that do both.", pays, len(all)),
			fmt.Sprintf("`auto` is worst at %v: %s of the better placement (%s and %s requests a second).", worst.point, fixed(3, worst.ofBetter()), rate(worst.auto), rate(worst.better())),
			fmt.Sprintf("`auto` is most above `aggregated` at %v: %s and %s requests a second.", best.point, rate(best.auto), rate(best.aggregated)),
			effort,
			options.roundsNote(all),
			"`disaggregated` has one split at each point, by a rule, not the best of several: where `auto` serves more than the better of the two, another split might, too.",
			"Routers learn the bandwidth from the transfers.",
		},
		Ratios: []Ratio{
			mapRatio(worstOfMap, all, worst, capacities.ofBetter),
			mapRatio(bestOfMap, all, best, capacities.ofAggregated),
		},
	}
	grids := heatMap{title: "Capacity, disaggregated over aggregated; below: auto over the better"}
	for _, b := range bandwidths {
		g := grid{title: o.name + ", " + gigabits(b), xLabel: "answer", yLabel: "prompt"}
		for _, n := range outputs {
			g.columns = append(g.columns, fmt.Sprint(n))
		}
		for _, prompt := range prompts {
			g.rows = append(g.rows, fmt.Sprint(prompt))
			for _, output := range outputs {
				i := slices.IndexFunc(all, func(m mapped) bool { return m.prompt == prompt && m.output == output && m.bandwidth == b })
				g.cells = append(g.cells, heatCell{ratio: all[i].paysOff(), text: times(all[i].paysOff()), below: fixed(2, all[i].ofBetter())})
			}
		}
		grids.grids = append(grids.grids, g)
	}
	grids.across = len(bandwidths)
	r.Pictures = []Picture{{Name: mapPrefix + o.name, Alt: "Where disaggregation pays off, by lengths, SLO and bandwidth", SVG: grids.svg()}}
	return r
}

// The headline ratios of a map.
const (
	worstOfMap = "auto over the better placement, worst point"
	bestOfMap  = "auto over aggregated, best point"
)

// roundsNote says how much rounds differ.
func (o Options) roundsNote(all []mapped) string {
	least, most := o.mapRounds()
	if most < 2 {
		return "Each figure is of one round of arrivals."
	}
	var differ []string
	for _, f := range []struct {
		name string
		of   func(capacities) float64
	}{
		{"`aggregated`", func(c capacities) float64 { return c.aggregated }},
		{"`disaggregated`", func(c capacities) float64 { return c.disaggregated }},
		{"`auto`", func(c capacities) float64 { return c.auto }},
		{"`disaggregated` over `aggregated`", capacities.paysOff},
		{"`auto` over the better", capacities.ofBetter},
	} {
		if deviation, greatest, known := spread(all, f.of); known {
			differ = append(differ, fmt.Sprintf("%s %.1f%% and %.1f%%", f.name, 100*deviation, 100*greatest))
		}
	}
	rounds := fmt.Sprintf("%d rounds of arrivals", least)
	if most > least {
		rounds = fmt.Sprintf("%d rounds of arrivals, or up to %d until the standard error of `auto` over the better is below %g%%", least, most, 100*knownWithin)
	}
	return fmt.Sprintf("Each figure is the mean of %s. The standard deviation from round to round, and the greatest difference at one point: %s.", rounds, strings.Join(differ, ", "))
}

// mapRatio is a headline of a point. Its noise is what rounds differ by over all points, since those of one
// point are too few to tell.
func mapRatio(name string, all []mapped, at mapped, figure func(capacities) float64) Ratio {
	deviation, _, _ := spread(all, figure)
	return ratioOf(name, figure(at.capacities), deviation, len(at.rounds))
}

// times is a ratio for people.
func times(ratio float64) string {
	switch {
	case math.IsInf(ratio, 1):
		return "the other serves none"
	case math.IsNaN(ratio):
		return "–"
	}
	return fmt.Sprintf("%.2f×", ratio)
}

// fixed has so many decimals; NaN, of nothing over nothing, is a dash.
func fixed(decimals int, v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.*f", decimals, v)
}
