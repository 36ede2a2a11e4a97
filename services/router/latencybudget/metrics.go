package latencybudget

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

func newBreaches(set *metricset.Set) *prometheus.CounterVec {
	return set.Counters("tandem_budget_breaches_total", "Requests over the latency budget, by the stage to blame.", "stage")
}

// Quantiles of what was spent that metrics show; 1 is the largest.
var spentQuantiles = []float64{.5, .9, .95, .99, .999, 1}

var (
	declaredDesc = prometheus.NewDesc("tandem_budget_declared_seconds", "Declared latency budget in seconds, by stage and total; decode and tpot are per token.", []string{"stage"}, nil)
	spentDesc    = prometheus.NewDesc("tandem_budget_spent_seconds", "What requests spent, in seconds, by stage and total; fetch is part of prefill. Quantiles cover the last budget-window, count and sum all requests.", []string{"stage"}, nil)
	ratioDesc    = prometheus.NewDesc("tandem_latency_p99_p50_ratio", "99th percentile of a latency over its median, in the last budget-window.", []string{"latency"}, nil)
)

// Describe says what Collect sends.
func (s *Spending) Describe(out chan<- *prometheus.Desc) {
	out <- declaredDesc
	out <- spentDesc
	out <- ratioDesc
}

// Collect sends the budget as it is now.
func (s *Spending) Collect(out chan<- prometheus.Metric) {
	now := time.Now()
	line := func(name string, declared time.Duration, d *latency.Distribution) {
		if declared > 0 {
			out <- prometheus.MustNewConstMetric(declaredDesc, prometheus.GaugeValue, declared.Seconds(), name)
		}
		quantiles := make(map[float64]float64, len(spentQuantiles))
		for _, q := range spentQuantiles {
			quantiles[q] = d.Quantile(q).Seconds()
			if d.Count == 0 {
				quantiles[q] = math.NaN() // as summaries have it
			}
		}
		out <- prometheus.MustNewConstSummary(spentDesc, uint64(d.AllCount), d.AllSum.Seconds(), quantiles, name)
	}
	ratio := func(name string, d *latency.Distribution) {
		if median := d.Quantile(.5); median > 0 {
			out <- prometheus.MustNewConstMetric(ratioDesc, prometheus.GaugeValue, float64(d.Quantile(.99))/float64(median), name)
		}
	}
	for stage, window := range s.stages {
		line(api.Stage(stage).String(), s.config.Declared.Stages[stage], window.Snapshot(now))
	}
	line(partFetch, 0, s.fetch.Snapshot(now))
	for total, window := range s.totals {
		d := window.Snapshot(now)
		line(latency.Total(total).String(), s.config.Declared.Totals[total], d)
		ratio(latency.Total(total).String(), d)
	}
	ratio("second_token", s.second.Snapshot(now))
	ratio("inter_token", s.gaps.Snapshot(now))
}
