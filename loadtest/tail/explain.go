package tail

import (
	"cmp"
	"math"
	"slices"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// view is the budgets sorted by one latency, with its percentiles.
type view struct {
	latency measure.Latency
	name    string
	// budgets by rising latency.
	budgets []*budget
	value   func(*budget) float64
	parts   func(*budget) *parts
	// measured are the percentiles with enough samples.
	measured []percentile
}

// percentile is a summary's percentile: its key, and its name for people.
type percentile struct {
	key, name string
	q         float64
	ms        float64
}

// Explain joins the completed requests due in run's window with the server's budgets. It
// explains only percentiles that summary has. It returns nil if no request has a budget,
// and keeps no reference to its arguments.
func Explain(run *record.Run, summary *measure.Summary) *Explanation {
	var budgets []*budget
	completed := 0
	for r := range run.Window() {
		if r.Outcome != record.Completed {
			continue
		}
		completed++
		if b, ok := budgetOf(r); ok {
			budgets = append(budgets, &b)
		}
	}
	if len(budgets) == 0 {
		return nil
	}
	views := []*view{
		newView(measure.TTFT, "TTFT", summary.TTFT, budgets,
			func(b *budget) float64 { return b.ttftMs }, func(b *budget) *parts { return &b.ttft }),
		newView(measure.E2E, "E2E", summary.E2E, budgets,
			func(b *budget) float64 { return b.e2eMs }, func(b *budget) *parts { return &b.e2e }),
	}
	e := &Explanation{Joined: len(budgets), Completed: completed, Slowest: slowest(views)}
	for _, v := range views {
		for _, p := range v.measured {
			e.Breakdowns = append(e.Breakdowns, v.breakdown(p))
		}
		e.Amdahl = append(e.Amdahl, v.amdahl()...)
	}
	e.otherShares(budgets)
	return e
}

func newView(latency measure.Latency, name string, d *measure.Distribution, budgets []*budget, value func(*budget) float64, of func(*budget) *parts) *view {
	v := &view{latency: latency, name: name, budgets: slices.Clone(budgets), value: value, parts: of}
	slices.SortStableFunc(v.budgets, func(a, b *budget) int {
		return cmp.Or(cmp.Compare(value(a), value(b)), cmp.Compare(a.record.Index, b.record.Index))
	})
	for _, p := range []percentile{{key: "p50", name: "p50", q: 0.5}, {key: "p90", name: "p90", q: 0.9}, {key: "p99", name: "p99", q: 0.99}, {key: "p999", name: "p99.9", q: 0.999}} {
		if measured := d.Percentile(p.key); measured != nil {
			p.ms = *measured
			v.measured = append(v.measured, p)
		}
	}
	return v
}

// near returns the requests around a percentile: those whose rank is within one standard
// error of its own. The rank of the q-quantile of n independent samples is binomial with
// standard deviation √(n·q·(1−q)) (David and Nagaraja, Order Statistics, 3rd ed., 2.5),
// so the window grows with the sample while its share shrinks.
func (v *view) near(q float64) []*budget {
	n := len(v.budgets)
	at := stats.QuantileIndex(n, q)
	half := int(math.Sqrt(float64(n) * q * (1 - q)))
	return v.budgets[max(at-half, 0):min(at+half+1, n)]
}

func (v *view) breakdown(p percentile) Breakdown {
	requests := v.near(p.q)
	var mean parts
	for _, b := range requests {
		for i, x := range v.parts(b) {
			mean[i] += x / float64(len(requests))
		}
	}
	split := mean.scaled(p.ms)
	return Breakdown{
		Latency: v.latency, Percentile: p.key, Milliseconds: p.ms, Stages: split.byName(),
		Requests: len(requests), Text: line(p.name+" "+v.name, p.ms, split),
	}
}

// otherShares computes how much of E2E no stage covers.
func (e *Explanation) otherShares(budgets []*budget) {
	shares := make([]float64, 0, len(budgets))
	sum := 0.0
	for _, b := range budgets {
		share := 0.0
		if b.e2eMs > 0 {
			share = min(b.e2e[iOther]/b.e2eMs, 1)
		}
		shares = append(shares, share)
		sum += share
	}
	slices.Sort(shares)
	e.OtherShareMean = sum / float64(len(shares))
	e.OtherShareP50 = stats.Quantile(shares, 0.5)
	e.OtherShareP99 = stats.Quantile(shares, 0.99)
}
