package report

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/loadtest/tail"
)

// maxPoints bounds a time series. Points of longer runs span several seconds.
const maxPoints = 1800

// NewFigures makes the figures of a run from its records, their summary and, if not nil,
// the explanation of its tail. It keeps summary and explained.
func NewFigures(run *record.Run, summary *measure.Summary, explained *tail.Explanation) Figures {
	f := Figures{
		Rate:        run.Offered,
		Concurrency: run.Concurrency,
		WindowS:     (run.To - run.From).Seconds(),
		WarmupS:     run.From.Seconds(),
		Summary:     *summary,
		Client:      newClient(run, summary),
		Tail:        explained,
		Series:      series(run),
		Curves:      map[string][]CurveXY{},
	}
	for _, d := range summary.Distributions() {
		if c := curve(d.Distribution); len(c) > 0 {
			f.Curves[string(d.Latency)] = c
		}
	}
	return f
}

func newClient(run *record.Run, summary *measure.Summary) Client {
	c := Client{
		Cores: run.Client.Cores, CPUSeconds: run.Client.CPUSeconds,
		GCPauseMaxMs: stats.Milliseconds(run.Client.GCPauseMax), InFlightMax: run.Client.InFlightMax,
		Bottleneck: run.Client.Bottleneck, CPUShare: run.CPUShare(), OthersShare: run.Client.OthersShare,
	}
	if d := summary.DispatchDelay; d != nil {
		c.DispatchDelayP99 = d.P99
	}
	return c
}

// curve samples a percentile curve from a histogram: twenty points per factor of ten
// towards 1, as far as the sample allows and at most to p99.99, then the maximum.
func curve(d *measure.Distribution) []CurveXY {
	if d == nil || d.HDR == "" {
		return nil
	}
	h, err := stats.DecodeHistogram(d.HDR)
	if err != nil || h.Count() == 0 {
		return nil // only the plot is lost
	}
	const perDecade, decades = 20, 4
	n, most := float64(h.Count()), stats.Milliseconds(h.Max())
	if d.Max != nil {
		most = *d.Max // exact, unlike the histogram
	}
	var out []CurveXY
	for k := range perDecade*decades + 1 {
		above := math.Exp2(-float64(k) / perDecade * math.Log2(10))
		if above*n < 1 {
			break
		}
		out = append(out, CurveXY{Quantile: 1 - above, Ms: min(stats.Milliseconds(h.Quantile(1-above)), most)})
	}
	if last := 1 - 1/n; last > out[len(out)-1].Quantile && 1/n >= math.Exp2(-decades*math.Log2(10)) {
		out = append(out, CurveXY{Quantile: last, Ms: most})
	}
	return out
}

// series counts events per second, including warm-up and drain.
func series(run *record.Run) []Point {
	end := max(run.Drained, run.To)
	if end <= 0 {
		return nil
	}
	width := time.Second
	if n := (end + time.Second - 1) / time.Second; n > maxPoints {
		width = (n + maxPoints - 1) / maxPoints * time.Second
	}
	points := make([]Point, int((end+width-1)/width))
	for i := range points {
		points[i].S = (time.Duration(i) * width).Seconds()
	}
	// at returns nil for a time that did not occur.
	at := func(moment time.Duration) *Point {
		if moment < 0 {
			return nil
		}
		return &points[min(int(moment/width), len(points)-1)]
	}
	ttft, tpot := make([][]float64, len(points)), make([][]float64, len(points))
	for _, r := range run.Records {
		due := at(r.Due)
		if due == nil {
			continue
		}
		due.Due++
		due.Backlog++ // a change; summed up below
		if p := at(r.Admitted); p != nil {
			p.Admitted++
		}
		end := r.End
		if r.Outcome == record.Unsent {
			end = r.Due // no longer waited for
		}
		if p := at(end); p != nil && r.Outcome != record.Pending {
			p.Ended++
			p.Backlog--
			if r.Outcome != record.Completed {
				p.Failed++
			}
		}
		for _, a := range r.Arrivals {
			if p := at(a.At); p != nil {
				p.Tokens += int64(a.Tokens)
			}
		}
		i := min(int(r.Due/width), len(points)-1)
		if d := measure.OfRequest(measure.TTFT, r); d != record.Unset {
			ttft[i] = append(ttft[i], stats.Milliseconds(d))
		}
		if d := measure.OfRequest(measure.TPOT, r); d != record.Unset {
			tpot[i] = append(tpot[i], stats.Milliseconds(d))
		}
	}
	backlog := 0
	for i := range points {
		backlog += points[i].Backlog
		points[i].Backlog = backlog
		points[i].TTFTP50, points[i].TTFTMax = middleAndMax(ttft[i])
		points[i].TPOTP50, points[i].TPOTMax = middleAndMax(tpot[i])
	}
	return points
}

// middleAndMax returns nil without values.
func middleAndMax(values []float64) (middle, most *float64) {
	if len(values) == 0 {
		return nil, nil
	}
	slices.Sort(values)
	return &values[(len(values)-1)/2], &values[len(values)-1]
}
