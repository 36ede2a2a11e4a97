package gpu

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Round is one round of one batch.
type Round struct {
	Limits                               cuda.Limits
	Prefill                              time.Duration
	Steps, Short, Beside                 []time.Duration
	CPU, Host                            time.Duration
	ReadAlone, ReadPlain, ReadBesideRate float64
}

// Sum makes a result of rounds, of a model with one batch and one context, and one reader.
func Sum(p Plan, spec model.Spec, prefillFLOPs float64, measured []Round) *Result {
	all := func(each []time.Duration, cpu, host time.Duration) steps {
		s := steps{each: each, cpu: cpu, host: host}
		for _, one := range each {
			s.took += one
		}
		return s
	}
	r := &Result{Plan: p}
	r.Prefill.FLOPsComputed = prefillFLOPs
	var rounds []round
	for _, m := range measured {
		rounds = append(rounds, round{
			limits: m.Limits, prefill: m.Prefill,
			decode: []decodeRound{{all(m.Steps, m.CPU, m.Host), all(m.Short, 0, 0)}},
			reads:  []readRound{{m.ReadAlone, m.ReadPlain, m.ReadBesideRate, all(m.Beside, 0, 0)}},
		})
	}
	d := &decoder{place: place{batch: p.Batches[0], context: p.ContextTokens[0]}, costs: engine.NewCosts(spec, engine.BytesPerWeight{}, 0)}
	r.sum(rounds, []*decoder{d}, []int{1})
	return r
}
