package measure

import (
	"math"
	"time"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// percentiles are those of a Distribution.
var percentiles = []struct {
	name string
	q    float64
	of   func(*Distribution) **float64
}{
	{"p50", 0.5, func(d *Distribution) **float64 { return &d.P50 }},
	{"p90", 0.9, func(d *Distribution) **float64 { return &d.P90 }},
	{"p95", 0.95, func(d *Distribution) **float64 { return &d.P95 }},
	{"p99", 0.99, func(d *Distribution) **float64 { return &d.P99 }},
	{"p999", 0.999, func(d *Distribution) **float64 { return &d.P999 }},
}

// Percentiles are the names of a Distribution's percentiles, ascending, as used in CI,
// Needs and Effective.
func Percentiles() []string {
	names := make([]string, len(percentiles))
	for i, p := range percentiles {
		names[i] = p.name
	}
	return names
}

// Percentile returns a percentile or "max" by name, nil if absent.
func (d *Distribution) Percentile(name string) *float64 {
	if d == nil {
		return nil
	}
	if name == "max" {
		return d.Max
	}
	for _, p := range percentiles {
		if p.name == name {
			return *p.of(d)
		}
	}
	return nil
}

// Distributions are a summary's latencies by name, in the order of reports.
func (s *Summary) Distributions() []Named {
	return []Named{
		{TTFT, s.TTFT}, {TTFTSent, s.TTFTSent}, {SecondToken, s.SecondToken},
		{ITL, s.ITL}, {ITLMessage, s.ITLMessage}, {TPOT, s.TPOT},
		{E2E, s.E2E}, {E2ESent, s.E2ESent}, {NormalizedE2E, s.NormalizedE2E},
		{DispatchDelay, s.DispatchDelay}, {AdmissionDelay, s.AdmissionDelay},
	}
}

// Named is a latency's distribution.
type Named struct {
	Latency Latency
	*Distribution
}

// sample is the observations of one latency. each iterates over values with their counts
// and groups. Groups are numbered from 0 in order of time; observations within a group
// may depend on each other in any way.
type sample struct {
	groups int
	each   func(yield func(group int, d time.Duration, n int64))
}

// perRequest is a sample with one value per request, by due time.
func perRequest(values []time.Duration) sample {
	return sample{len(values), func(yield func(int, time.Duration, int64)) {
		for i, d := range values {
			yield(i, d, 1)
		}
	}}
}

// distribution gives the figures of a sample.
func distribution(s sample) *Distribution {
	h := stats.NewHistogram()
	s.each(func(_ int, d time.Duration, n int64) { h.RecordN(d, n) })
	d := &Distribution{Count: h.Count()}
	if d.Count == 0 {
		return d
	}
	d.Mean = stats.Milliseconds(h.Mean())
	d.Max = new(stats.Milliseconds(h.Max()))
	d.CI = map[string][2]float64{}
	d.Needs = map[string]int64{}
	d.Effective = map[string]float64{}
	for i, e := range estimate(s, h, sharesBelow(1)) {
		p := percentiles[i]
		*p.of(d) = e.value
		if e.ci != nil {
			d.CI[p.name] = *e.ci
		} else {
			d.Needs[p.name] = e.needs
		}
		d.Effective[p.name] = math.Round(e.effective*10) / 10
	}
	// If encoding fails, the figures stand without it.
	if text, err := h.Encode(); err == nil {
		d.HDR = text
	}
	return d
}

// estimated is the estimate of a quantile.
type estimated struct {
	value     *float64    // milliseconds; nil: too few samples
	ci        *[2]float64 // nil: too few independent ones
	needs     int64       // samples for an interval
	effective float64
}

// sharesBelow are the shares of the percentiles below one.
func sharesBelow(share float64) []float64 {
	var shares []float64
	for _, p := range percentiles {
		if p.q < share {
			shares = append(shares, p.q)
		}
	}
	return shares
}

// estimate is quantiles of ascending shares with their intervals. If one has none, neither
// have the higher ones: requests too alike for a median are too alike for a p99. The share
// at most the quantile, group by group, tells how far the samples are independent. Where many samples are equal
// to the quantile, as gaps that one stall made long, the share below it tells more.
func estimate(s sample, h *stats.Histogram, shares []float64) []estimated {
	quantiles := make([]time.Duration, len(shares))
	upTo, below := make([][]float64, len(shares)), make([][]float64, len(shares))
	for i, q := range shares {
		quantiles[i], upTo[i], below[i] = h.Quantile(q), make([]float64, s.groups), make([]float64, s.groups)
	}
	totals := make([]float64, s.groups)
	s.each(func(group int, d time.Duration, n int64) {
		totals[group] += float64(n)
		for i, quantile := range quantiles {
			if d <= quantile+time.Microsecond/2 { // as the histogram rounds
				upTo[i][group] += float64(n)
			}
			if d < quantile-quantile/1000-time.Microsecond { // under its bucket
				below[i][group] += float64(n)
			}
		}
	})
	all := make([]estimated, len(shares))
	for i, q := range shares {
		e := &all[i]
		e.effective = min(stats.EffectiveSize(upTo[i], totals), stats.EffectiveSize(below[i], totals))
		needs := stats.QuantileNeeds(q)
		e.needs = samplesFor(needs, h.Count(), e.effective)
		if h.Count() >= needs {
			e.value = new(stats.Milliseconds(quantiles[i]))
		}
		low, high, ok := h.Interval(q, e.effective)
		if i > 0 && all[i-1].ci == nil {
			e.needs, ok = max(e.needs, all[i-1].needs), false
		}
		if ok {
			e.ci = &[2]float64{stats.Milliseconds(low), stats.Milliseconds(high)}
		}
	}
	return all
}

// samplesFor is how many samples an interval takes that needs so many independent ones,
// if count samples are worth effective of them: an estimate, so two digits of it. As long
// as there are fewer than needs, nearly independent ones count as such.
func samplesFor(needs, count int64, effective float64) int64 {
	each := float64(count) / effective
	if each <= 1 || each < 1.1 && count < needs {
		return needs
	}
	n := float64(needs) * each
	unit := math.Pow(10, math.Floor(math.Log10(n))-1)
	return int64(math.Ceil(n/unit) * unit)
}
