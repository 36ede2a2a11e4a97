package routing

import (
	"math"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scaling"
)

const (
	// rateSeconds is about how long an arrival counts in the rate.
	rateSeconds = 20
	// rateGone is after how many times that a rate is 0 if nothing comes.
	rateGone = 10
	// lengthWeight and gapWeight are of how many requests the last one is one in the averages of lengths and
	// of the gaps between requests. They are many, as sizes of pools are not to follow chance, and lengths
	// of answers vary by more than their mean. gapWeight is also of how many the objectives are kept.
	lengthWeight = 1024
	gapWeight    = 256
	// gapMost is how many times the mean a gap is at most: a pause says nothing about bursts.
	gapMost = 20
)

// traffic is the requests for a model: those that come, and what those ask for that are dispatched. A nil one
// is of a model that is not served, and takes nothing in.
type traffic struct {
	arrivals

	inTime inTime
	demand *demand // nil: none was dispatched
}

// arrivals are the requests for a model that come, refused ones too. The averages are of the last
// ones, times in seconds.
type arrivals struct {
	rate
	number, sent, served uint64 // requests that came, were dispatched, and were served
	gap, gapSquare       float64
	tokens, tokensSquare float64
	uncached, output     float64              // tokens of prompts that no worker held, and of answers
	ttft, tpot           float64              // 0: none wants any
	wanted               [gapWeight]Objective // by the last requests, in any order
}

// rate is how often something happens.
type rate struct {
	began, last time.Time // the first and the last time
	sum         float64   // as of last: over all times, and decays
}

// observe takes in that it does.
func (r *rate) observe(now time.Time) {
	if r.began.IsZero() {
		r.began, r.last = now, now
	}
	r.sum = r.at(now) + 1.0/rateSeconds
	r.last = now
}

// at is what is left of the sum.
func (r *rate) at(now time.Time) float64 {
	return r.sum * math.Exp(-now.Sub(r.last).Seconds()/rateSeconds)
}

// perSecond is how often a second, as of a process that began with the first time.
func (r *rate) perSecond(now time.Time) float64 {
	if now.Sub(r.last).Seconds() > rateGone*rateSeconds {
		return 0
	}
	return r.at(now) / (1 - math.Exp(-max(now.Sub(r.began).Seconds(), 1)/rateSeconds))
}

// recordArrival takes in a request that came.
func (t *traffic) recordArrival(now time.Time, r *Request) {
	if t == nil {
		return
	}
	a := &t.arrivals
	if a.number > 0 {
		gap := now.Sub(a.last).Seconds()
		if a.gap > 0 {
			gap = min(gap, gapMost*a.gap)
		}
		mean(&a.gap, gap, a.number, gapWeight)
		mean(&a.gapSquare, gap*gap, a.number, gapWeight)
	}
	a.observe(now)
	a.number++
	a.wanted[a.number%gapWeight] = Objective{r.TTFT, r.TPOT}
	mean(&a.tokens, float64(r.Tokens), a.number, lengthWeight)
	mean(&a.tokensSquare, float64(r.Tokens)*float64(r.Tokens), a.number, lengthWeight)
	if r.TTFT > 0 {
		a.ttft += (r.TTFT.Seconds() - a.ttft) / weight(a.ttft)
	}
	if r.TPOT > 0 {
		a.tpot += (r.TPOT.Seconds() - a.tpot) / weight(a.tpot)
	}
}

// recordDispatch takes in a request that was dispatched, and how many of its tokens its worker has to compute.
// atPrefill: a prefill worker computes them; sent: and sends their KV to a decode worker.
func (t *traffic) recordDispatch(now time.Time, r *Request, uncached int, atPrefill, sent bool) {
	if t == nil {
		return
	}
	t.sent++
	mean(&t.uncached, float64(uncached), t.sent, lengthWeight)
	if t.demand == nil {
		t.demand = &demand{prompt: float64(uncached), most: float64(r.MaxNew), share: 1, tpotMs: milliseconds(r.TPOT)}
	} else {
		t.demand.observe(r, uncached)
	}
	if atPrefill {
		t.demand.prompts.observe(now)
	}
	if sent {
		t.demand.sent.observe(now)
	}
}

// recordAnswer takes in an answer of so many tokens, of so many that it might have had.
func (t *traffic) recordAnswer(tokens, most int) {
	if t == nil {
		return
	}
	t.served++
	mean(&t.output, float64(tokens), t.served, lengthWeight)
	if d := t.demand; d != nil && most > 0 {
		d.share += (float64(tokens)/float64(most) - d.share) / demandWeight
	}
}

// mean takes a value into an average, of the first ones all alike.
func mean(of *float64, value float64, number uint64, most float64) {
	*of += (value - *of) / min(float64(max(number, 1)), most)
}

// weight is of how many values the next one is one in an average that is 0 before the first.
func weight(average float64) float64 {
	if average == 0 {
		return 1
	}
	return demandWeight
}

// scv is the squared coefficient of variation.
func scv(mean, square float64) float64 {
	if mean <= 0 {
		return 1
	}
	return max(square/(mean*mean)-1, 0)
}

// Demand is what requests for a model ask of this router's workers.
func (rt *Router) Demand(now time.Time, model string) scaling.Demand {
	var out scaling.Demand
	for e := range rt.queue.all() {
		if e.request.Model == model {
			out.Waiting++
			out.WaitingTokens += float64(e.request.Tokens)
		}
	}
	a := rt.traffic[model]
	if a == nil || a.number == 0 {
		return out
	}
	out.RequestsPerSecond = a.perSecond(now)
	out.GapSCV = 1
	if a.number > demandWeight {
		out.GapSCV = scv(a.gap, a.gapSquare)
	}
	out.ContextTokens, out.PromptTokens, out.PromptSCV = a.tokens, a.tokens, scv(a.tokens, a.tokensSquare)
	out.TTFT, out.TPOT = durationOf(a.ttft*1000), durationOf(a.tpot*1000)
	ttfts, tpots := make([]scaling.Wanted, 0, gapWeight), make([]scaling.Wanted, 0, gapWeight)
	for i := range min(a.number, gapWeight) {
		o := a.wanted[(a.number-i)%gapWeight]
		ttfts, tpots = append(ttfts, scaling.Wanted{Time: o.TTFT, Weight: 1}), append(tpots, scaling.Wanted{Time: o.TPOT, Weight: 1})
	}
	out.TightTTFT, out.TightTPOT = scaling.Tightest(ttfts), scaling.Tightest(tpots)
	if a.sent > 0 {
		out.PromptTokens = min(a.uncached, a.tokens)
	}
	switch {
	case a.served > 0:
		out.OutputTokens = a.output
	case a.demand != nil: // by what they may have at most
		out.OutputTokens = a.demand.answer()
	}
	return out
}

// Mesh is what the workers of a model can do.
func (rt *Router) Mesh(model string) scaling.Mesh {
	var out scaling.Mesh
	out.Prefill, out.PrefillOnly = rt.capacity(controlv1.Role_ROLE_PREFILL, model)
	out.Decode, _ = rt.capacity(controlv1.Role_ROLE_DECODE, model)
	return out
}

// capacity is what the workers of a role can do, and whether some of them take no aggregated requests.
func (rt *Router) capacity(role controlv1.Role, model string) (out scaling.Pool, prefillOnly bool) {
	served, known := rt.model(model), 0
	var step latency.Model
	var tokens, sequences, kv float64
	for _, w := range rt.ofRole(role) {
		if !rt.takes(w, served) {
			continue
		}
		out.Workers++
		prefillOnly = prefillOnly || role == controlv1.Role_ROLE_PREFILL && !w.takesAggregated
		m, is := w.measured()
		if !is {
			continue
		}
		known++
		step.BaseMs, step.PerTokenMs = step.BaseMs+m.BaseMs, step.PerTokenMs+m.PerTokenMs
		step.PerContextTokenMs, step.PerSquareMs = step.PerContextTokenMs+m.PerContextTokenMs, step.PerSquareMs+m.PerSquareMs
		tokens += float64(w.steps(m, rt.promptTokens(model), 0, 0).stepTokens)
		sequences += float64(w.maxSequences)
		kv += float64(w.blocks) * float64(w.blockTokens)
	}
	if known == 0 {
		return out, prefillOnly
	}
	n := float64(known)
	out.Known = true
	out.Step = latency.Model{BaseMs: step.BaseMs / n, PerTokenMs: step.PerTokenMs / n, PerContextTokenMs: step.PerContextTokenMs / n, PerSquareMs: step.PerSquareMs / n}
	out.StepTokens, out.Sequences, out.KVTokens = int(tokens/n), int(sequences/n), int(kv/n)
	return out, prefillOnly
}
