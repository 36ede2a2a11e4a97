package plan

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-serving/tandem/pkg/queueing"
)

// Formula is one step of the calculation, for a size.
type Formula struct {
	// Name is the formula's, Of what it tells, Value that in Unit.
	Name  string  `json:"name"`
	Of    string  `json:"of"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Assumes is what has to be so for it to hold.
	Assumes string `json:"assumes"`
}

// Constraint is a rule that a pool has to keep.
type Constraint struct {
	// Pool is prefill, decode or both (workers that do both phases), Name the rule's: slo, utilisation, burst or variance.
	Pool string `json:"pool"`
	Name string `json:"name"`
	Rule string `json:"rule"`
	// Workers is the fewest that keep it. Simulation may find that fewer keep the SLO.
	Workers int `json:"workers"`
	// Floor: simulation does not test the rule, so that a plan has no fewer workers.
	Floor bool `json:"floor"`
}

// constraints are the rules of some pools, with how many workers each takes.
func (f *formulas) constraints(pools ...string) ([]Constraint, error) {
	h := f.headroom
	burst := fmt.Sprintf("%g times the rate for %v is served within %v (utilisation of at most %.2f)", h.Burst, h.BurstLength, h.BurstDrain, h.burstUtilisation())
	variance := fmt.Sprintf("%g standard deviations above the mean number of answers still fit", h.Deviations)
	utilisation := fmt.Sprintf("utilisation of at most %g", h.Utilisation)
	running := fmt.Sprintf("at most %d answers at once on a worker, by %s", f.decode.most, f.decode.limit())
	ttft, tpot := "the queue does not grow", running
	if bounds := terms(f.slo, "ttft"); len(bounds) > 0 {
		ttft = bounds[0].String()
	}
	if bounds := terms(f.slo, "tpot"); len(bounds) > 0 {
		tpot = bounds[0].String() + ": " + running
	}
	prefillSLO := 1
	if slices.Contains(pools, "prefill") {
		var err error
		if prefillSLO, err = f.prefillSLO(); err != nil {
			return nil, err
		}
	}
	all := []Constraint{
		{Pool: "prefill", Name: "slo", Rule: ttft, Workers: prefillSLO},
		{Pool: "prefill", Name: "utilisation", Rule: utilisation, Workers: f.upTo(h.Utilisation / f.service.Seconds), Floor: true},
		{Pool: "prefill", Name: "burst", Rule: burst, Workers: f.upTo(h.burstUtilisation() / f.service.Seconds), Floor: true},
		{Pool: "decode", Name: "slo", Rule: tpot, Workers: f.upTo(f.decode.rate)},
		{Pool: "decode", Name: "utilisation", Rule: utilisation, Workers: f.upTo(h.Utilisation * f.decode.rate), Floor: true},
		{Pool: "decode", Name: "burst", Rule: burst, Workers: f.upTo(h.burstUtilisation() * f.decode.rate), Floor: true},
		{Pool: "decode", Name: "variance", Rule: variance, Workers: f.upTo(f.varianceRate()), Floor: true},
		{Pool: "both", Name: "utilisation", Rule: utilisation, Workers: f.upTo(h.Utilisation / f.both), Floor: true},
		{Pool: "both", Name: "burst", Rule: burst, Workers: f.upTo(h.burstUtilisation() / f.both), Floor: true},
		// That of decode, with the time of the prompt.
		{Pool: "both", Name: "variance", Rule: variance, Workers: f.upTo(1 / (f.both - 1/f.decode.rate + 1/f.varianceRate())), Floor: true},
	}
	return slices.DeleteFunc(all, func(c Constraint) bool { return !slices.Contains(pools, c.Pool) }), nil
}

// limit is what bounds the answers at once on a worker.
func (d *decoding) limit() string {
	switch {
	case d.most < d.memory:
		return "the bound on tpot"
	case d.byKV:
		return "its KV memory"
	}
	return "--max-sequences"
}

// sizes are what the constraints take: all of them, and those that simulation does not test.
func sizes(constraints []Constraint) (all, floor Size) {
	for _, c := range constraints {
		of := [2]*int{&all.Decode, &floor.Decode}
		if c.Pool == "prefill" {
			of = [2]*int{&all.Prefill, &floor.Prefill}
		}
		*of[0] = max(*of[0], c.Workers)
		if c.Floor {
			*of[1] = max(*of[1], c.Workers)
		}
	}
	return all, floor
}

// utilisation of both pools: the share of what they can serve within the SLO. Without
// prefill workers, decode is that of workers that do both.
func (f *formulas) utilisation(size Size) map[string]float64 {
	if size.Prefill == 0 {
		return map[string]float64{"both": f.rate * f.both / float64(size.Decode)}
	}
	return map[string]float64{
		"prefill": f.rate * f.service.Seconds / float64(size.Prefill),
		"decode":  f.rate / f.decode.rate / float64(size.Decode),
	}
}

// calculation is the formulas for a size, which may be too small for some.
func (f *formulas) calculation(size Size) []Formula {
	var all []Formula
	add := func(name, of, unit, assumes string, value float64, err error) {
		if err == nil && !math.IsInf(value, 0) && !math.IsNaN(value) {
			all = append(all, Formula{name, of, value, unit, assumes})
		}
	}
	load, err := queueing.Little(f.rate, f.service.Seconds)
	add("Little's law", "prefill workers that are busy", "workers", "the load is steady", load, err)
	if size.Prefill > 0 {
		mean := queueing.Service{Seconds: f.service.Seconds, SCV: 1}
		one, err := queueing.MM1(f.rate/float64(size.Prefill), mean.Seconds)
		add("M/M/1", "mean wait, if each prefill worker had a queue of its own", "s", "requests come at random, prompts take exponential times, workers are drawn at random", one.WaitSeconds, err)
		many, err := queueing.MMc(f.rate, mean.Seconds, size.Prefill)
		add("M/M/c", "mean wait for the first free prefill worker", "s", "requests come at random, prompts take exponential times, one queue for all workers", many.WaitSeconds, err)
		name, random := "M/G/c (Allen–Cunneen)", "requests come at random"
		if f.arrivalSCV != 1 {
			name, random = "G/G/c (Allen–Cunneen)", fmt.Sprintf("times between requests vary by %.2g (squared, 1 is random)", f.arrivalSCV)
		}
		own, err := f.queue(size.Prefill)
		add(name, "the same", "s", fmt.Sprintf("%s, prompts take the times of their lengths (squared variation %.2f), none is cached", random, f.service.SCV), own.WaitSeconds, err)
		if err == nil {
			add(name, "p99 of that wait", "s", "waits of those who wait are exponential", own.Quantile(0.99), nil)
			speedup, err := queueing.Amdahl(own.WaitSeconds/(own.WaitSeconds+f.service.Seconds), 2)
			add("Amdahl's law", "how much shorter twice the prefill workers make the mean TTFT, at most", "times", "more workers shorten the wait only, and no prompt", speedup, err)
		}
	}
	if f.decode.steps > 0 && size.Prefill > 0 {
		running, seconds, err := f.decode.batch.Running(f.rate/float64(size.Decode), f.decode.steps)
		add("Little's law, for batches", "answers in progress on a decode worker", "answers", "steps follow one another, and take time in proportion to the answers in them", running, err)
		add("Little's law, for batches", "mean step of a decode worker", "s", "the same", seconds, err)
	}
	if n := f.headroom.FanOut; n > 1 {
		q, err := queueing.FanOut(0.99, n)
		add("fan-out", fmt.Sprintf("quantile that each of %d calls keeps for the p99 of the slowest", n), "", "calls are independent", q, err)
	}
	return all
}
