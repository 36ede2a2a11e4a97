package engine

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

// PrefillFLOPs are those of a prompt in chunks.
func PrefillFLOPs(spec model.Spec, prompt, chunk int) (counted, computed float64) {
	return prefillFLOPs(spec, chunks(make([]int32, prompt), nil, chunk, true))
}

// DecodeBytes are those of all steps of a plan.
func DecodeBytes(spec model.Spec, p Plan) float64 { return decodeBytes(spec, p) }

// Sum makes a result of one prompt and one round of decode for each of measured but the
// last.
func Sum(r *Result, prefill []time.Duration, steps [][]time.Duration, measured []latency.Limits) {
	var rounds []round
	for i := range prefill {
		rounds = append(rounds, round{limits: measured[i], prefill: prefill[i], steps: steps[i], allocs: uint64(10 * (i + 1)), allocd: 40})
	}
	r.sum(rounds, measured[len(prefill)])
}
