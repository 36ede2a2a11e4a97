package contenders

import (
	"fmt"
	"io"
	"slices"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Difference is one figure of two contenders: the median over rounds. Its JSON is public.
type Difference struct {
	Latency    measure.Latency `json:"latency"`
	Percentile string          `json:"percentile"`
	// Milliseconds of each, with the least and the greatest of the rounds.
	Milliseconds [2]float64    `json:"ms"`
	Range        [2][2]float64 `json:"range_ms"`
	// Relative is how much the second is above the first: 0.1 is 10%. Nil if the
	// first is 0.
	Relative *float64 `json:"relative"`
	// Rounds that both had the figure in.
	Rounds int `json:"rounds"`
}

// Differences are p50 and p99 of TTFT and TPOT of the first two contenders, over all rounds
// of a result of one rate.
func (r *Result) Differences() []Difference {
	var all []Difference
	for _, l := range []struct {
		name measure.Latency
		of   func(report.Figures) *measure.Distribution
	}{
		{measure.TTFT, func(f report.Figures) *measure.Distribution { return f.TTFT }},
		{measure.TPOT, func(f report.Figures) *measure.Distribution { return f.TPOT }},
	} {
		for _, p := range []string{"p50", "p99"} {
			var sides [2][]float64
			for _, step := range r.Steps {
				a, b := l.of(step.Figures[0]).Percentile(p), l.of(step.Figures[1]).Percentile(p)
				if a != nil && b != nil {
					sides[0], sides[1] = append(sides[0], *a), append(sides[1], *b)
				}
			}
			if len(sides[0]) == 0 {
				continue
			}
			d := Difference{Latency: l.name, Percentile: p, Rounds: len(sides[0])}
			for i, values := range sides {
				d.Milliseconds[i] = stats.Median(values)
				d.Range[i] = [2]float64{slices.Min(values), slices.Max(values)}
			}
			if first := d.Milliseconds[0]; first > 0 {
				d.Relative = new(d.Milliseconds[1]/first - 1)
			}
			all = append(all, d)
		}
	}
	return all
}

// WriteDifferences writes Differences as a table of Markdown.
func (r *Result) WriteDifferences(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "| median of rounds (least to most), ms | %s | %s | difference |\n|---|---|---|---|\n", r.name(0), r.name(1)); err != nil {
		return err
	}
	for _, d := range r.Differences() {
		cell := func(side int) string {
			return fmt.Sprintf("%s (%s to %s)", milliseconds(d.Milliseconds[side]), milliseconds(d.Range[side][0]), milliseconds(d.Range[side][1]))
		}
		relative := "n/a"
		if d.Relative != nil {
			relative = fmt.Sprintf("%+.1f%%", 100**d.Relative)
		}
		if _, err := fmt.Fprintf(w, "| %s %s | %s | %s | %s |\n", names[d.Latency], d.Percentile, cell(0), cell(1), relative); err != nil {
			return err
		}
	}
	return nil
}

var names = map[measure.Latency]string{measure.TTFT: "TTFT", measure.TPOT: "TPOT"}
