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
	// lengthWeight is of how many requests the last one is one in averages of lengths, and gapWeight
	// of how many gaps between requests, and how many are looked at for what they want: sizes are not to follow chance, and lengths of answers vary
	// by more than their mean.
	lengthWeight = 1024
	gapWeight    = 256
	// gapMost is how many times the mean a gap is at most: a pause says nothing about bursts.
	gapMost = 20
)

// arrivals are the requests for a model that come, refused ones too. The averages are of the last
// ones, times in seconds.
type arrivals struct {
	rate
	number, sent, served uint64 // requests that came, were dispatched, and were served
	gap, gapSquare       float64
	tokens, tokensSquare float64
	lacks, output        float64              // tokens of prompts that no worker held, and of answers
	ttft, tpot           float64              // 0: none wants any
	wanted               [gapWeight]Objective // by the last requests, in any order
}

// rate is how often something happens.
type rate struct {
	began, last time.Time // the first and the last time
	sum         float64   // as of last: over all times, and decays
}

// happened takes in that it does.
func (r *rate) happened(now time.Time) {
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

// came takes in a request that came.
func (rt *Router) came(now time.Time, r *Request) {
	a := rt.arrivals[r.Model]
	if a == nil {
		if len(rt.arrivals) >= len(rt.config.Models) { // bounded, whatever is asked for
			return
		}
		a = new(arrivals)
		rt.arrivals[r.Model] = a
	} else {
		gap := now.Sub(a.last).Seconds()
		if a.gap > 0 {
			gap = min(gap, gapMost*a.gap)
		}
		mean(&a.gap, gap, a.number, gapWeight)
		mean(&a.gapSquare, gap*gap, a.number, gapWeight)
	}
	a.happened(now)
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

// dispatched takes in that a request was, to a worker that lacks so many of its tokens.
func (a *arrivals) dispatched(lacks int) {
	if a != nil {
		a.sent++
		mean(&a.lacks, float64(lacks), a.sent, lengthWeight)
	}
}

// answered takes in an answer of so many tokens.
func (a *arrivals) answered(tokens int) {
	if a != nil {
		a.served++
		mean(&a.output, float64(tokens), a.served, lengthWeight)
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
	a := rt.arrivals[model]
	if a == nil {
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
		out.PromptTokens = min(a.lacks, a.tokens)
	}
	switch {
	case a.served > 0:
		out.OutputTokens = a.output
	case rt.demands[model] != nil: // by what they may have at most
		out.OutputTokens = rt.demands[model].answer()
	}
	return out
}

// Mesh is what the workers of a model can do.
func (rt *Router) Mesh(model string) scaling.Mesh {
	var out scaling.Mesh
	out.Prefill, out.Apart = rt.capacity(controlv1.Role_ROLE_PREFILL, model)
	out.Decode, _ = rt.capacity(controlv1.Role_ROLE_DECODE, model)
	return out
}

// capacity is what the workers of a role can do, and whether some of them take no aggregated requests.
func (rt *Router) capacity(role controlv1.Role, model string) (out scaling.Pool, apart bool) {
	served, known := rt.model(model), 0
	var step latency.Model
	var tokens, sequences, kv float64
	for _, w := range rt.ofRole(role) {
		if !w.connected || w.draining || !w.of(served) {
			continue
		}
		out.Workers++
		apart = apart || role == controlv1.Role_ROLE_PREFILL && !w.takesAggregated
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
		return out, apart
	}
	n := float64(known)
	out.Known = true
	out.Step = latency.Model{BaseMs: step.BaseMs / n, PerTokenMs: step.PerTokenMs / n, PerContextTokenMs: step.PerContextTokenMs / n, PerSquareMs: step.PerSquareMs / n}
	out.StepTokens, out.Sequences, out.KVTokens = int(tokens/n), int(sequences/n), int(kv/n)
	return out, apart
}
