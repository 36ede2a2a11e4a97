package tail

import (
	"slices"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// noticeable is the minimum share of a percentile for a stage to be considered.
const noticeable = 0.01

// amdahl recomputes every request with one stage faster, and takes p50 and p99 again.
// Each is scaled by the ratio of the summary's percentile to the sample's, which differ
// by the histogram's resolution.
func (v *view) amdahl() []WhatIf {
	var out []WhatIf
	for _, p := range v.measured {
		if p.key != "p50" && p.key != "p99" {
			continue
		}
		at := stats.QuantileIndex(len(v.budgets), p.q)
		now := v.value(v.budgets[at])
		if now <= 0 || p.ms <= 0 {
			continue
		}
		shares := v.breakdown(p).Stages
		for i, stage := range Stages() {
			if shares[stage] < noticeable*p.ms {
				continue
			}
			for _, speedup := range []float64{2, 0} {
				then := v.faster(i, speedup)[at] * p.ms / now
				out = append(out, WhatIf{
					Latency: v.latency, Percentile: p.key, Stage: stage, Speedup: speedup,
					NowMs: p.ms, ThenMs: min(max(then, 0), p.ms),
				})
			}
		}
	}
	return out
}

// faster returns every request's latency, sorted, with stage i speedup times as fast; 0:
// taking no time.
func (v *view) faster(i int, speedup float64) []float64 {
	keep := 0.0
	if speedup > 0 {
		keep = 1 / speedup
	}
	out := make([]float64, len(v.budgets))
	for k, b := range v.budgets {
		out[k] = v.value(b) - v.parts(b)[i]*(1-keep)
	}
	slices.Sort(out)
	return out
}
