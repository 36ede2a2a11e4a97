package routing

import (
	"cmp"
	"math"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// cost is what a request is predicted to cost on a worker. Times are milliseconds.
type cost struct {
	measured bool   // what steps take is, and not assumed
	idle     bool   // nobody else is there, or so say reports alone
	cached   int    // tokens of the prompt that it holds
	uncached int    // those that it lacks
	expected int    // of those, the tokens that others have computed there by then
	source   source // block store that has more of the prompt
	fetched  int    // tokens predicted to come from there

	queueMs    float64 // to compute what is there already
	stepLeftMs float64 // of that, what is left of a step that decodes
	prefillMs  float64 // to compute the prompt
	reserveMs  float64 // on a decode worker that gets the prompt's KV instead: until it can come
	firstMs    float64 // to the first token: the sum of these
	transferMs float64 // from the first token until KV that is sent has arrived
	bytesPerMs float64 // that a transfer is taken to move; 0: none is predicted
	tokenTimes
	onTime   tokenTimes // the same if the second token came as soon as its step allows
	aloneMs  float64    // tpotMs if nobody else decoded there
	othersMs float64    // tpotMs of those that decode there, with this request's prompt
	totalMs  float64    // to the first token, and for as many output tokens as count
	// promptMs is what its prompt adds to the steps of a worker that does all of it, and delaysOthersMs how much
	// longer that makes others wait who decode there, all together.
	promptMs, delaysOthersMs float64
	decodeMs                 float64 // what its output tokens add to the steps there
	workMs                   float64 // what its prompt takes of the time, among others
	savedMs                  float64 // what counts for it that its prompt is not computed elsewhere too
	before                   int     // sequences that have, or get, a place in the batch before it
	sequenceMs               float64 // how long sequences have theirs
	placeMs                  float64 // how long it waits for a place in the batch
	promptHere               bool    // its prompt is computed there, in that place
	// ceilingMs and placeCeilingMs are how long it may wait there: the worker has enough to do until
	// the router hears what it has done.
	ceilingMs, placeCeilingMs float64
	ownMs, ownPlaceMs         float64 // how long it waits for this router's requests alone
	// slowFirst and slowToken are the factors by which the times to the first token and of an output
	// token are longer than the worker's reports say, which they contain.
	slowFirst, slowToken float64
	// doubtFirst and doubtToken are the factors by which the two times may be longer still, in all but
	// one of lateOne cases. The times do not contain them.
	doubtFirst, doubtToken float64

	alone   bool // nobody else is there, and nothing is in its way
	crowded bool // its prompt waits for a place in the batch, which KV that arrives gets first
	misses  bool // the objective of the request is out of reach there
}

// tokenTimes are what an output token takes.
type tokenTimes struct {
	tpotMs  float64 // as predicted
	mostMs  float64 // if every step had as much of prompts as it may
	leastMs float64 // if no step had any; infinite where no pace is kept
}

// computed is how many tokens of the prompt the worker computes for the request.
func (c *cost) computed() int { return c.uncached - c.expected - c.fetched }

// score predicts what a request costs on each candidate. Those that may not take it are
// scored too: operators are shown what they would have cost.
func (rt *Router) score(s *search, role controlv1.Role, all []candidate) {
	for i := range all {
		rt.cost(s, role, &all[i])
	}
}

// cost is what a request costs on a worker of a role: on a decode worker alone, or with its
// prompt computed elsewhere where that is what mode auto would do.
func (rt *Router) cost(s *search, role controlv1.Role, c *candidate) {
	cached := rt.cached(s, c.worker)
	rt.costOf(s, role, c, cached, role == controlv1.Role_ROLE_DECODE && rt.disaggregates(s, s.request.Tokens-cached))
}

// costOf is cost, with its prompt computed elsewhere or not.
func (rt *Router) costOf(s *search, role controlv1.Role, c *candidate, cached int, promptElsewhere bool) {
	r, w, load := s.request, c.worker, &c.load
	model, measured := w.measured()
	if !measured {
		model = rt.unmeasured(s, role)
	} else if load.count == 0 && w.role == role && s.now.Sub(w.usedAt) >= revisitAfter(role, model) {
		if other := rt.quicker(s, role); clearlySlower(role, model, other, r.Tokens) {
			model, model.Samples = other, 0
		}
	}
	c.cost = cost{slowFirst: 1, slowToken: 1, measured: model.Samples > 0, idle: w.owned == 0 || load.count == 0 && load.tokens == 0, cached: cached, uncached: r.Tokens - cached}
	decodes := role == controlv1.Role_ROLE_DECODE
	if promptElsewhere {
		c.reserveMs = w.reserveMs
		rt.predictTransfer(&c.cost, s.now, nil, &c.finding, c.uncached, rt.disaggregatedPromptMs, rt.disaggregatedPromptMs)
	} else {
		model = rt.addPromptCost(s, c, model, decodes)
	}
	c.firstMs = c.queueMs + c.prefillMs + c.reserveMs
	c.totalMs = c.firstMs - c.savedMs
	if decodes {
		// What a worker has not done lately is taken to need no longer than where it is done: it would
		// else never be tried.
		answers := model
		if w.takesAggregated && !w.decodedLately(s.now) {
			one := latency.Decoding(1, r.Tokens)
			if m := rt.quickestStep(controlv1.Role_ROLE_DECODE, s.version); m.Samples > 0 && m.Predict(one) < model.Predict(one) {
				answers = m
			}
		}
		rt.addDecodeCost(s, c, answers, model.PromptMs(c.computed(), r.Tokens-c.computed()), promptElsewhere)
	}
	c.alone = load.count == 0 && c.queueMs == 0
	c.doubtFirst, c.doubtToken = w.first.factorAt(s.now), w.tokens.factorAt(s.now)
	if c.alone { // how long waits are mistaken says nothing where there is none
		c.doubtFirst = w.firstAlone.factorAt(s.now)
	}
	if c.measured && r.Attempt == 0 {
		ttft, tpot := s.entry.objective(&c.cost)
		c.misses = ttft > 0 && !promptElsewhere && s.late(&c.cost, 0) > ttft || tpot > 0 && c.lateToken(c.doubtToken) > tpot
	}
}

// late is the time from the request's arrival to its first token, after aheadMs of others: the most
// that it may be for a request that has just come, and else the expected one. A request that was let in
// is not refused because a prediction may be wrong.
func (s *search) late(c *cost, aheadMs float64) time.Duration {
	factor := 1.
	if s.entry.workMs == 0 {
		factor = c.doubtFirst
	}
	return s.now.Sub(s.request.Arrived) + durationOf(aheadMs*s.doubt+c.firstMs*factor)
}

// missesAfter reports whether its objective is missed where so much of others is done before.
func (c *candidate) missesAfter(s *search, aheadMs float64) bool {
	ttft, _ := s.entry.objective(&c.cost)
	return c.measured && s.request.Attempt == 0 && ttft > 0 && s.late(&c.cost, aheadMs) > ttft
}

// addPromptCost adds what the prompt takes at a worker. It returns the model of its steps, with what another
// worker measured where this one's says nothing of prompts as long.
func (rt *Router) addPromptCost(s *search, c *candidate, model latency.Model, decodes bool) latency.Model {
	r, w, load := s.request, c.worker, &c.load
	steps := c.steps(model, rt.promptTokens(r.Model), load.decoding, load.decodingContext)
	if decodes && extrapolates(model, c.uncached) {
		if prior := rt.priorStep(s); prior.Samples > 0 {
			steps.model, steps.chunk = prior, cmp.Or(max(w.chunk, 0), math.MaxInt32)
			steps.stepTokens = steps.chunk
			model.PerTokenMs, model.PerSquareMs = prior.PerTokenMs, prior.PerSquareMs
		}
	}
	if load.decoding > 0 && s.entry.tpot > 0 && w.keepsTPOT {
		steps = steps.paced(milliseconds(s.entry.tpot), w.blockTokens)
	}
	lacks := c.uncached
	if s.ownObjective() { // such come before others, the earliest first, however long they are
		lacks = math.MaxInt32
	}
	if c.queueMs = w.waitMs(steps, s.now, c.fresh, lacks); load.decoding > 0 {
		c.stepLeftMs = steps.otherMs / 2 // on average
		c.queueMs = max(c.queueMs, c.stepLeftMs)
	}
	c.expected = rt.expectedTokens(s, w, c.cached)
	if !decodes {
		c.source = rt.source(s, w, c.cached+c.expected)
	}
	c.prefillMs, c.fetched = steps.prefillMs(r.Tokens, c.cached+c.expected, c.source)
	c.ownMs = steps.queueMs(w.total.tokens)
	c.ceilingMs, c.workMs = steps.ceilingMs(), steps.workMs(c.computed())
	if c.expected > 0 {
		c.savedMs = repeatedWork * (steps.ms(c.uncached, c.cached) - c.prefillMs)
	}
	if f := w.slowFirst.tried(s.now); f != 1 {
		c.slowFirst = f
		for _, ms := range [...]*float64{&c.queueMs, &c.stepLeftMs, &c.prefillMs, &c.ownMs, &c.ceilingMs, &c.workMs, &c.savedMs} {
			*ms *= f
		}
	}
	return model
}

// addDecodeCost adds what decoding costs on a worker, and how much longer it makes others there wait. A
// prompt that the worker computes itself adds promptMs to its steps.
func (rt *Router) addDecodeCost(s *search, c *candidate, model latency.Model, promptMs float64, promptElsewhere bool) {
	r, w, load := s.request, c.worker, &c.load
	// Prompts that are computed there lengthen the steps: by their share of the time, and at most
	// by one chunk.
	prompts := w.promptTime.share(s.now) + c.prompts
	steps := c.steps(model, rt.promptTokens(r.Model), load.decoding+1, load.decodingContext+r.Tokens)
	mostMs := steps.mostMs()
	stepMs := func(prompts float64) float64 {
		return min(steps.otherMs/(1-min(prompts, mostPrompts)), mostMs)
	}
	if s.entry.tpot > 0 && w.keepsTPOT { // prompts leave it that, if it can have it
		mostMs = max(latency.PaceShare*float64(s.entry.tpot)/float64(time.Millisecond), steps.otherMs)
		if w.takesAggregated && load.tokens >= steps.stepTokens { // they fill its steps
			prompts = mostPrompts
		}
	}
	c.tpotMs, c.mostMs, c.leastMs = stepMs(prompts), mostMs, math.Inf(1)
	if s.entry.tpot > 0 && w.keepsTPOT {
		c.leastMs = steps.otherMs
	}
	c.othersMs, c.aloneMs = c.tpotMs, w.steps(model, 0, 1, r.Tokens).otherMs
	if !promptElsewhere {
		c.promptMs = promptMs
		c.delaysOthersMs = rt.delaysOthersMs(r.Model, promptMs, max(mostMs-steps.otherMs, float64(w.blockTokens)/(latency.PaceWithoutPrompts+1)*steps.tokenMs()), load.decoding)
		if load.decoding > 0 {
			c.othersMs = stepMs(prompts + c.promptMs/promptWindowMs)
		}
	}
	if f := w.slowToken.tried(s.now); f != 1 {
		c.slowToken = f
		for _, ms := range [...]*float64{&c.tpotMs, &c.mostMs, &c.leastMs, &c.othersMs, &c.aloneMs, &c.promptMs, &c.delaysOthersMs} {
			*ms *= f
		}
	}
	life := cmp.Or(w.sequenceMs, c.tpotMs*float64(r.MaxNew)) // of those before: until one has ended, as this one's
	// Where the batch has no place, the prompt waits for one, or the second token does, as for KV.
	c.placeCeilingMs = rt.placeCeilingMs(w, life)
	c.ownPlaceMs = c.waitForPlaceMs(w.owned, life)
	c.before, c.sequenceMs = load.decoding, life
	c.onTime = c.tokenTimes
	if promptElsewhere {
		c.before -= w.endWithin(rt.disaggregatedPromptMs, life)
		c.placeMs = c.waitForPlaceMs(c.before, life)
		c.tokenTimes = c.onTime.delayed(max(c.placeMs, c.transferMs), r.MaxNew)
	} else {
		c.promptHere = true
		if c.placeMs = c.waitForPlaceMs(load.decoding, life); c.placeMs > c.queueMs {
			c.firstMs += c.placeMs - c.queueMs
			c.queueMs, c.crowded = c.placeMs, true
		}
	}
	counted := rt.countedTokens(r)
	c.decodeMs = counted * (model.PerTokenMs + model.PerContextTokenMs*float64(r.Tokens)) * c.slowToken
	c.totalMs = c.firstMs - c.savedMs + c.tpotMs*counted + c.decodeMs*float64(load.decoding)/2 // the others are half-way, on average
}

// delayed are those of a second token that comes later than its step. A worker that keeps the objective of
// a token makes up for that by giving prompts less of the steps, as long as they have any.
func (t tokenTimes) delayed(ms float64, maxNew int) tokenTimes {
	each := ms / float64(max(maxNew-1, 1))
	most := t.mostMs + each
	if !math.IsInf(t.leastMs, 1) {
		most = max(t.mostMs, t.leastMs+each)
	}
	t.tpotMs, t.mostMs = min(t.tpotMs+each, most), most
	return t
}

// countedTokens is how many output tokens count in the cost of a request.
func (rt *Router) countedTokens(r *Request) float64 {
	return float64(min(r.MaxNew, rt.config.TPOTHorizonTokens))
}

// delaysOthersMs is how much longer a prompt makes so many sequences wait, all together, if it adds at most
// mostMs to a step. On average half of their answers is left, and only those steps are delayed.
func (rt *Router) delaysOthersMs(model string, promptMs, mostMs float64, decoding int) float64 {
	if d := rt.demandFor(model); d != nil {
		promptMs = min(promptMs, mostMs*d.answer()/2)
	}
	return promptMs * float64(decoding)
}

// lateToken is the longer time of a token, of the request or of those that decode beside it, where it
// is factor times what is predicted. Others are taken to have the request's objective.
func (c *cost) lateToken(factor float64) time.Duration {
	return durationOf(min(max(c.tpotMs, c.othersMs)*factor, c.mostMs))
}

// waitForPlaceMs is how long a sequence waits for a place in the batch, where so many are in it or come
// first: places become free as those that run end.
func (c *candidate) waitForPlaceMs(before int, lifeMs float64) float64 {
	places := c.places()
	if places <= 0 || before < places {
		return 0
	}
	return float64(before-places+1) * lifeMs / float64(places)
}

// reservedPlacesFor is how many places in a prefill worker's batch aggregated requests leave to prompts
// for decode workers, of which so many come in a millisecond: as many as are there on average (Little's
// law), plus two standard deviations of a Poisson count.
func (rt *Router) reservedPlacesFor(w *worker, prompts float64) int {
	there := prompts * rt.disaggregatedPromptMs
	return min(int(math.Ceil(there+2*math.Sqrt(there))), (w.maxSequences+reservedMost-1)/reservedMost, max(w.maxSequences-1, 0))
}

// reservedMost: at most one in so many places is reserved, rounded up, and never the last one.
const reservedMost = 8

// extrapolates reports whether a prompt of which so many tokens are lacking is far beyond the steps that
// a model was fitted to: decode workers that have computed hardly any prompt know only small steps.
func extrapolates(model latency.Model, lacks int) bool {
	return model.MostTokens > 0 && extrapolatedTimes*model.MostTokens < min(lacks, leastPrompt)
}

const (
	extrapolatedTimes = 4   // so many times the tokens of the largest step are far beyond it
	leastPrompt       = 256 // tokens of a step that is known to be one of prompts
)

// priorStep is what prompts are taken to need on a decode worker that has computed none: as much
// as on the prefill worker that is the quickest. Samples is 0 where none has measured.
func (rt *Router) priorStep(s *search) latency.Model {
	if s.prior == nil {
		step := rt.quickestStep(controlv1.Role_ROLE_PREFILL, s.version)
		s.prior = &step
	}
	return *s.prior
}
