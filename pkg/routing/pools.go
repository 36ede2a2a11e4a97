package routing

import (
	"cmp"
	"math"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// What the workers serve depends on how all requests use the pools. Either all are disaggregated, and prefill
// workers compute prompts only; or all are aggregated, and each worker does all of what it gets. A few sequences
// that decode on a worker full of prompts shorten its steps, and many cost little more, so that one of the two
// serves more than what lies between. Choosing the cheaper placement for one request after another does not find
// it. A router therefore compares what both serve of the requests that come, and goes by the better one once some
// are late or refused.

// demand is what requests for a model ask for, on average.
type demand struct {
	prompt float64 // tokens of a prompt that no worker holds
	most   float64 // tokens that an answer may have
	share  float64 // of which an answer has this share
	tpotMs float64 // that a token may take, of requests that say so; 0: any
	// prompts are those that prefill workers compute, and sent those of them whose KV they send.
	prompts, sent rate

	choice
}

const (
	// demandWeight is of how many requests the last one is one in the averages.
	demandWeight = 64
	// promptsMost is how much of their time prefill workers that do nothing else can compute prompts, if
	// those are not to wait long: they come in bursts. Of few workers each is idle for more of it, by
	// promptsLess over the root of how many there are (Halfin and Whitt, 1981).
	promptsMost = 0.85
	promptsLess = 0.3
)

// demandFor is what the requests for a model ask for; nil: none was dispatched.
func (rt *Router) demandFor(model string) *demand {
	if t := rt.traffic[model]; t != nil {
		return t.demand
	}
	return nil
}

// observe takes in a request of which a worker has to compute so many tokens.
func (d *demand) observe(r *Request, uncached int) {
	d.prompt += (float64(uncached) - d.prompt) / demandWeight
	d.most += (float64(r.MaxNew) - d.most) / demandWeight
	switch each := milliseconds(r.TPOT); { // who takes any time says nothing about the others
	case each == 0:
	case d.tpotMs == 0:
		d.tpotMs = each
	default:
		d.tpotMs += (each - d.tpotMs) / demandWeight
	}
}

// promptTokens is how many tokens of a prompt workers compute, on average; 0: none has come.
func (rt *Router) promptTokens(model string) int {
	if d := rt.demandFor(model); d != nil {
		return int(d.prompt)
	}
	return 0
}

// answer is how many tokens an answer has.
func (d *demand) answer() float64 { return max(d.most*d.share, 1) }

// decodeSteps is in how many steps an answer decodes: its first token comes of the prompt.
func (d *demand) decodeSteps() float64 { return max(d.answer()-1, 1) }

// pool is what the workers of a role can do, on average.
type pool struct {
	workers int
	// baseMs is the fixed time of a step, and promptShare what prompts have of steps without others.
	baseMs, promptShare float64
	places              float64 // of sequences that decode, in all
	// promptMs and answerMs are what the prompt and the answer of a request take.
	promptMs, answerMs float64
	// sendMs is what a worker's network takes for the KV of a prompt.
	sendMs float64
	// sequenceMs is how long a sequence has its place; 0: none has ended.
	sequenceMs float64
}

func (rt *Router) pool(role controlv1.Role, model string, d *demand) pool {
	var p pool
	served := rt.model(model)
	type kind struct {
		role    controlv1.Role
		version Version
	}
	quickest := make(map[kind]latency.Model)
	quickestStep := func(role controlv1.Role, v Version) latency.Model {
		m, looked := quickest[kind{role, v}]
		if !looked {
			m = rt.quickestStep(role, v)
			quickest[kind{role, v}] = m
		}
		return m
	}
	for _, w := range rt.ofRole(role) {
		m, known := w.measured()
		if !known || !rt.takes(w, served) || role == controlv1.Role_ROLE_PREFILL && !w.takesAggregated {
			continue
		}
		// What a worker has hardly done is taken to need as long as where it is done.
		prompts, answers := m, m
		if role == controlv1.Role_ROLE_PREFILL && !w.decodedLately(rt.now) {
			if m := quickestStep(controlv1.Role_ROLE_DECODE, w.version); m.Samples > 0 {
				answers = m
			}
		}
		if role == controlv1.Role_ROLE_DECODE && extrapolates(m, int(d.prompt)) {
			prompts = quickestStep(controlv1.Role_ROLE_PREFILL, w.version)
		}
		p.workers++
		p.baseMs += answers.BaseMs
		p.places += float64(w.maxSequences)
		p.sequenceMs = max(p.sequenceMs, w.sequenceMs)
		alone := w.steps(prompts, int(d.prompt), 0, 0)
		p.promptMs += prompts.PromptMs(int(d.prompt), 0)
		p.sendMs += rt.transferMs(rt.now, w, int(d.prompt))
		p.answerMs += d.decodeSteps() * (answers.PerTokenMs + answers.PerContextTokenMs*(d.prompt+d.answer()/2))
		if ms := float64(alone.stepTokens) * alone.tokenMs(); ms > 0 {
			p.promptShare += ms / (ms + m.BaseMs)
		}
	}
	n := float64(max(p.workers, 1))
	p.baseMs, p.promptShare, p.promptMs, p.answerMs, p.sendMs = p.baseMs/n, p.promptShare/n, p.promptMs/n, p.answerMs/n, p.sendMs/n
	return p
}

// spareMs is how much of each millisecond the pool's workers together have beside the fixed time of
// steps that take so long.
func (p pool) spareMs(stepMs float64) float64 { return float64(p.workers) * (1 - p.baseMs/stepMs) }

// poolRates are how many requests a millisecond the pools serve with all aggregated and with all
// disaggregated, and how many prompts prefill workers compute of these. Decode workers compute the rest.
func (d *demand) poolRates(prefill, decode pool) (aggregated, disaggregated, computed float64) {
	aggregated = d.rate(max(prefill.baseMs, decode.baseMs), prefill.places+decode.places, 0, func(stepMs float64) float64 {
		return prefill.spareMs(stepMs)/(prefill.promptMs+prefill.answerMs) + decode.spareMs(stepMs)/(decode.promptMs+decode.answerMs)
	})
	most := min(promptsMost, 1-promptsLess/math.Sqrt(float64(prefill.workers)))
	computable := most * float64(prefill.workers) * prefill.promptShare / prefill.promptMs
	decodes := func(computed, lateMs float64) float64 {
		return d.rate(decode.baseMs, decode.places, lateMs, func(stepMs float64) float64 {
			spare := decode.spareMs(stepMs)
			if decoded := spare / decode.answerMs; decoded <= computed {
				return decoded
			}
			return computed + (spare-computed*decode.answerMs)/(decode.promptMs+decode.answerMs)
		})
	}
	sendMs := max(prefill.sendMs/float64(max(prefill.workers, 1)), decode.sendMs/float64(max(decode.workers, 1)))
	if sendMs == 0 {
		return aggregated, decodes(computable, 0), computable
	}
	// Their KV passes the network of both. The more of its time that is busy, the longer KV waits
	// there, as in a queue with one length of service (Pollaczek, 1930), and the less of what tokens
	// may take is left to steps.
	oneMs := max(prefill.sendMs, decode.sendMs)
	for busy := 0.1; busy < 0.95; busy += 0.1 {
		sent := min(computable, busy/sendMs)
		waits := sent * sendMs / (2 * (1 - sent*sendMs))
		if rate := decodes(sent, max((1+waits)*oneMs-prefill.promptMs, 0)); rate > disaggregated {
			disaggregated, computed = rate, sent
		}
		if sent == computable {
			break
		}
	}
	return aggregated, disaggregated, computed
}

// rate is how many requests a millisecond workers with so many places serve. Their steps take leastMs
// or more, up to what a token may take. Longer steps leave more time for requests, byTime, but fewer
// sequences pass through the places: each keeps its own for one step less than it has tokens (Little's
// law). The second token comes lateMs later than its step.
func (d *demand) rate(leastMs, places, lateMs float64, byTime func(stepMs float64) float64) float64 {
	low := max(leastMs, shortestStepMs)
	high := d.tpotMs*latency.PaceShare - lateMs/d.decodeSteps()
	if d.tpotMs == 0 {
		high = longestStep * low
	}
	if high <= low {
		return 0
	}
	byPlace := func(stepMs float64) float64 { return places / (d.decodeSteps() * stepMs) }
	if byTime(high) <= byPlace(high) {
		return byTime(high)
	}
	for range 40 {
		if middle := (low + high) / 2; byTime(middle) <= byPlace(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return min(byTime(low), byPlace(low))
}

// shortestStepMs is what a step takes at least, also where a worker has measured no fixed time.
const shortestStepMs = 1e-3

// longestStep is how many times its fixed time a step takes at most where a token may take any.
const longestStep = 1e4

// reviewPoolUse compares the uses of a model's pools.
func (rt *Router) reviewPoolUse(model string, d *demand) {
	if rt.now.Sub(d.reviewed) < reviewEvery && d.overload == rt.overloaded() {
		return
	}
	prefill, decode := rt.pool(controlv1.Role_ROLE_PREFILL, model, d), rt.pool(controlv1.Role_ROLE_DECODE, model, d)
	if !(prefill.promptMs > 0 && prefill.answerMs > 0 && decode.promptMs > 0 && decode.answerMs > 0) {
		d.poolUse, d.expects, d.reviewed, d.overload = poolUse{}, [uses]float64{}, rt.now, rt.overloaded()
		return
	}
	aggregated, disaggregated, computed := d.poolRates(prefill, decode)
	t := rt.traffic[model]
	comes := t.perSecond(rt.now) * float64(1+len(rt.peerLoads.told)) / 1000
	var expects [uses]float64
	// A prompt is not disturbed on a worker that has one request at a time.
	expects[allAggregated] = max(t.inTime.beside*share(comes, aggregated), t.inTime.undisturbed*share(comes, d.exclusiveRate(prefill, decode)))
	expects[allDisaggregated] = t.inTime.undisturbed * share(comes, disaggregated)
	expects[byCost] = max(expects[allAggregated], expects[allDisaggregated])
	in := situation{rt.overloaded(), disaggregated > 0 && computed >= disaggregated*sparesMuch, rt.disturbed(model), aggregated*aggregatedIsWorth >= disaggregated}
	if in.disturbed || in.overload && in.spares {
		expects[byCost] = expects[allAggregated]
	}
	lasts := durationOf(cmp.Or(max(prefill.sequenceMs, decode.sequenceMs), 2*d.decodeSteps()*decode.baseMs))
	d.choose(rt.now, expects, in, lasts)
	d.allPromptsOnPrefill = d.use == allDisaggregated && computed >= min(disaggregated, comes)*allPromptsLeast
}

// overloaded reports whether this router or another refused a request for want of time lately.
func (rt *Router) overloaded() bool { return rt.now.Sub(rt.refusedForLoadAt) < poolUseLasts }

// exclusiveRate is how many requests a millisecond workers serve that each have one at a time.
func (d *demand) exclusiveRate(prefill, decode pool) float64 {
	const busy = 0.9
	stepMs := max(prefill.baseMs, decode.baseMs)
	return busy * float64(prefill.workers+decode.workers) / (max(prefill.promptMs, decode.promptMs) + d.decodeSteps()*stepMs)
}

// refusedHere takes in that this router refuses a request for want of time.
func (rt *Router) refusedHere(now time.Time) {
	if now.Sub(rt.refusedHereAt) >= reviewEvery {
		rt.outgoing.changed = true
	}
	rt.refusedHereAt = now
	rt.refused()
}

// refused finds out when this router or another refused one last.
func (rt *Router) refused() {
	at := rt.refusedHereAt
	for _, t := range rt.otherRouters {
		if t.refusedAt.After(at) {
			at = t.refusedAt
		}
	}
	rt.refusedForLoadAt = at
}

// poolUse is how requests like r are to use the workers now.
func (rt *Router) poolUse(r *Request) poolUse {
	d := rt.demandFor(r.Model)
	if d == nil || !rt.anyUse(r) {
		return poolUse{}
	}
	rt.reviewPoolUse(r.Model, d)
	return d.poolUse
}
