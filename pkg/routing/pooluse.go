package routing

import (
	"math"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// A router expects of each use of the pools which share of the requests it has in time (pools.go), and counts how
// many are. What it expects of a use is corrected by that, so that one that serves less than was expected gives
// way to another, and is tried again as the correction fades.

// use is how all requests for a model use the pools.
type use int

const (
	byCost           use = iota // each goes where it costs least
	allAggregated               // every worker is to do all of what it gets
	allDisaggregated            // prefill workers are to leave answers to decode workers
	uses
)

const (
	// poolUseLasts is for how long after a refusal for want of time there is overload.
	poolUseLasts = time.Minute
	// reviewEvery is how often the uses are compared.
	reviewEvery = time.Second
	// switchLeast is how many times what the present use serves another one has to serve to replace it: what
	// runs still uses the workers the other way.
	switchLeast = 1.05
	// aggregatedIsWorth is what allAggregated counts in overload, where not all are expected to be in time:
	// bursts are shared by both pools then.
	aggregatedIsWorth = 1.05
	// lessIsWorth is what byCost counts in overload, where it finds neither of the others, unless prefill workers
	// could compute sparesMuch times the prompts: byCost shares bursts as well as allAggregated then. Both count
	// that where some prompts are in time only where nobody decodes: those would never be served.
	lessIsWorth = 0.95
	sparesMuch  = 2
	// allPromptsLeast is what prefill workers have to compute of the prompts of disaggregated requests,
	// before decode workers leave all prompts to them: a few prompts shorten all steps there.
	allPromptsLeast = 0.8
	// outcomesWeight is of how many requests outcomes are. What was expected counts as expectedWeight of them at
	// first, and nothing beside expectedMost.
	outcomesWeight, expectedWeight, expectedMost = 512, 64, 512
	// wellShare of the requests in time, of wellLeast or more, are enough for a use to be kept.
	wellShare, wellLeast = 0.97, 32
	// outcomesFade is in about which time outcomes fade, however few requests come.
	outcomesFade = 5 * time.Minute
	leastWeight  = 1e-100
	// leastExpected is what is expected of a use at least: it may serve what step times exclude.
	leastExpected = 0.01
	// uncountedLeast and uncountedMost bound how long after a change of use nothing is counted, since what ran
	// before still has the workers.
	uncountedLeast, uncountedMost = time.Second, 20 * time.Second
)

// outcomes are the requests of a use, as far as they have an objective: how many came, how many of them were
// expected to be in time, and how many were. The older they are, the less they count.
type outcomes struct {
	came, expected, inTime float64
	// weight is that of a request that came when the outcomes were begun. Once it is too small they are begun again
	// for those that come, as another generation.
	weight     float64
	generation int
}

// outcome is a request that is counted as in time.
type outcome struct {
	use        use
	generation int
	weight     float64 // of the outcomes when it came
}

// factor is what is expected of a use is multiplied by. Of a use of which nothing is known it is unknown.
func (o *outcomes) factor(unknown float64) float64 {
	weight := expectedWeight * max(0, 1-o.expected/expectedMost)
	return (o.inTime + weight*unknown) / (o.expected + weight)
}

// well reports whether nearly all were in time.
func (o *outcomes) well() bool { return o.came >= wellLeast && o.inTime >= wellShare*o.came }

func (o *outcomes) fade(share float64) {
	o.came *= 1 - share
	o.expected *= 1 - share
	o.inTime *= 1 - share
	if o.weight *= 1 - share; o.weight < leastWeight {
		o.weight = 1
		o.generation++
	}
}

// poolUse is how all requests for a model use the pools at present.
type poolUse struct {
	use use
	// allPromptsOnPrefill: decode workers are to leave prompts to prefill workers, too, which have time
	// for all of them.
	allPromptsOnPrefill bool
}

// choice is of the uses of the pools.
type choice struct {
	poolUse
	expects  [uses]float64 // which share of the requests that come each has in time
	outcomes [uses]outcomes
	counts   time.Time // from when on outcomes are counted
	// reviewed is when they were last compared, and overload whether there was overload then.
	reviewed time.Time
	overload bool
}

// came takes in a request that was let in under the present use, or refused for want of time; nil: it is not counted.
func (c *choice) came(now time.Time, admitted bool) *outcome {
	expected := c.expects[c.use]
	if expected == 0 || now.Before(c.counts) {
		return nil
	}
	o := &c.outcomes[c.use]
	o.fade(1. / outcomesWeight)
	o.came++
	o.expected += expected
	if admitted {
		o.inTime++ // unless it turns out to be late
	}
	return &outcome{c.use, o.generation, o.weight}
}

// late takes in that a request was late that counts as in time.
func (c *choice) late(of *outcome) {
	if o := &c.outcomes[of.use]; of.generation == o.generation {
		o.inTime = max(o.inTime-o.weight/of.weight, 0)
	}
}

// gone takes in that nobody knows whether a request would have been in time that counts as such.
func (c *choice) gone(of *outcome) {
	if o := &c.outcomes[of.use]; of.generation == o.generation {
		weight := o.weight / of.weight
		o.came, o.expected, o.inTime = max(o.came-weight, 0), max(o.expected-weight*c.expects[of.use], 0), max(o.inTime-weight, 0)
	}
}

// situation is what the uses are worth beside what they serve.
type situation struct {
	// overload: requests are refused for want of time.
	overload bool
	// spares: prefill workers could compute sparesMuch times the prompts.
	spares bool
	// disturbed: some prompts are in time only where nobody decodes.
	disturbed bool
	// bursts: aggregated, the workers serve nearly as many as disaggregated, by step times.
	bursts bool
}

// choose compares the uses by what is expected of them, and sets the one to go by. A request lasts about lasts: after a
// change, outcomes are not counted for so long.
func (c *choice) choose(now time.Time, expects [uses]float64, in situation, lasts time.Duration) {
	var faded float64
	if !c.reviewed.IsZero() {
		faded = min(float64(now.Sub(c.reviewed))/float64(outcomesFade), 1)
	}
	for u := range uses {
		c.outcomes[u].fade(faded)
		expects[u] = max(expects[u], leastExpected)
	}
	c.reviewed, c.overload, c.expects = now, in.overload, expects
	if now.Before(c.counts) {
		return
	}
	// Where the present use serves more than expected, others are taken to do so, too, and no other to do so by more.
	present := max(c.outcomes[c.use].factor(1), 1)
	var worth [uses]float64
	for u := range uses {
		factor := c.outcomes[u].factor(present)
		if u != c.use {
			factor = min(factor, present)
		}
		worth[u] = min(expects[u]*factor, 1)
	}
	switch {
	case in.disturbed:
		worth[byCost] *= lessIsWorth
		worth[allAggregated] *= lessIsWorth
	case in.overload && !in.spares && expects[c.use] < wellShare:
		worth[byCost] *= lessIsWorth
		if in.bursts {
			worth[allAggregated] *= aggregatedIsWorth
		}
	}
	best := c.use
	for u := range uses {
		if worth[u] > worth[best] {
			best = u
		}
	}
	switch {
	case best != c.use && worth[best] > worth[c.use]*switchLeast && (in.disturbed || !c.outcomes[c.use].well()):
	case !in.overload && !in.disturbed && worth[byCost] >= worth[c.use]*lessIsWorth:
		best = byCost
	default:
		return
	}
	if best != c.use {
		c.use, c.counts = best, now.Add(min(max(lasts, uncountedLeast), uncountedMost))
	}
}

// share is which share of the requests is in time, of so many that come, where the workers serve so many. It is near 1
// where few come, and what they serve where many do.
func share(come, serve float64) float64 {
	if !(serve > 0) {
		return 0
	}
	square := come / serve * (come / serve)
	return 1 / math.Sqrt(math.Sqrt(1+square*square))
}

// outcomeCounts reports whether a request tells how well its use of the pools serves: any use may serve it, it has an
// objective of its own, and it comes for the first time.
func (rt *Router) outcomeCounts(e *entry) bool {
	r := &e.request
	return rt.anyUse(r) && rt.demandFor(r.Model) != nil && r.Attempt == 0 && e.hedges == nil && !e.defaultObjective && (r.TTFT > 0 || r.TPOT > 0)
}

// anyUse reports whether a request may be served by any use of the pools.
func (rt *Router) anyUse(r *Request) bool {
	return rt.policy.waitsAtRouter && rt.mode(r) == inferencev1.Mode_MODE_AUTO
}

// refusedFor takes in that a request was refused that another use of the pools, or less load, would have had in time.
func (rt *Router) refusedFor(now time.Time, e *entry) {
	if rt.outcomeCounts(e) {
		rt.demandFor(e.request.Model).came(now, false)
	}
}

// endedCounted takes in that a request has ended that counts as in time.
func (rt *Router) endedCounted(now time.Time, d *dispatched, e *Ended) {
	of := rt.demandFor(d.model)
	switch {
	case of == nil:
	case d.late(now, e.Tokens):
		of.late(d.outcome)
	case !e.Served:
		of.gone(d.outcome)
	}
}
