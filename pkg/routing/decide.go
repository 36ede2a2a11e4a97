package routing

import (
	"cmp"
	"fmt"
	"math"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// search is one search for workers of one version for a request.
type search struct {
	now     time.Time
	entry   *entry
	request *Request
	record  *controlv1.Decision
	number  uint64
	version Version // zero: none is known
	// Kept from one worker to the next: the step times of doubted.go, and the last one's prefix.
	unmeasured, quicker [2]*latency.Model // by byRole
	prior               *latency.Model    // of prompts on decode workers
	key                 BlockKey
	prefix              *prefix
	// ahead is how many wait that go before it, aheadMs what their prompts take, and doubt the factor
	// by which it may wait longer for them than that says.
	ahead          int
	aheadMs, doubt float64
	// wholes are the prefill workers that could do all of it.
	wholes *candidates
	// elsewhere and elsewhereMs are those of them that wait at other routers.
	elsewhere   int
	elsewhereMs float64
	use         // of all workers, in overload
	// instead is what mode auto did not choose: the prefill worker of two, or the worker that would
	// have done all.
	instead *candidate
}

// foreign reports whether a worker is of another version than is searched for.
func (s *search) foreign(w *worker) bool {
	return s.version != (Version{}) && w.version() != s.version
}

// decide searches workers for e and dispatches it if there are some, which it says. A
// request that has not begun may go to another version that is served, if its own has no
// worker that could ever take it.
func (rt *Router) decide(now time.Time, e *entry) (fitness, Refusal) {
	result, refusal := rt.decideFor(now, e, e.version)
	if e.request.Version != (Version{}) || result <= later || result == tooSlow {
		return result, refusal
	}
	for _, o := range rt.served[e.request.Model] {
		v := o.current()
		if v == e.version || v == (Version{}) {
			continue
		}
		if other, why := rt.decideFor(now, e, v); other <= later {
			e.version = v
			return other, why
		}
	}
	return result, refusal
}

// decideFor is decide for one version: the decode worker first, since it has to hold
// the result, then the mode, then the prefill worker.
func (rt *Router) decideFor(now time.Time, e *entry, v Version) (fitness, Refusal) {
	r := &e.request
	r.MaxNew = e.maxNew
	if left := rt.groups().contextTokens[v] - r.Tokens; left > 0 { // workers end the answer there
		r.MaxNew = min(r.MaxNew, left)
	}
	rt.searches++
	rt.lists.used = 0
	s := &search{now: now, entry: e, request: r, record: &controlv1.Decision{}, number: rt.searches, version: v, use: rt.use(r.Model)}
	e.pool, e.refused = controlv1.Role_ROLE_DECODE, nil
	decodes := rt.look(s, e.pool, nil)
	wholes := rt.wholes(s, decodes.fitness)
	s.wholes, e.whole = wholes, rt.anyOf(r, wholes)
	if !decodes.fitness.usable() && !wholes.fitness.usable() {
		best := min(decodes.fitness, wholes.fitness)
		if decodes.fitness == excluded && best == tooSmall {
			best = excluded // a decode worker that comes may be larger
		}
		var instead *candidates // what it waits for, where no decode worker could take it soon
		if wholes.fitness < decodes.fitness {
			instead = wholes
		}
		rt.lacks(s, decodes, instead)
		return best, rt.refusal(e, decodes, wholes)
	}
	switch { // a worker that may hang is no choice beside one that is well
	case wholes.fitness > decodes.fitness:
		wholes = rt.lists.next()
	case decodes.fitness == suspected && wholes.fitness < suspected:
		decodes = rt.lists.next()
	}
	decodes, wholes = rt.toHolder(s, decodes, wholes)
	rt.lookAhead(s)
	var decode, prefill *candidate
	var prefills *candidates // nil: one worker is to do all
	if decodes.fitness.usable() {
		decode = rt.pick(decodes.fittest())
	}
	places := decodes.usable() + wholes.usable()
	firsts := places
	if decode != nil && rt.disaggregates(s, decode.uncached) {
		decode, prefills = rt.pair(s, decodes, decode)
		switch {
		case prefills.fitness.usable():
			rt.sends(s, decode, prefills)
			prefill, firsts = rt.pick(prefills.fittest()), prefills.usable()
			decode.waitsFor(prefill, r.MaxNew)
			if rt.mode(r) == inferencev1.Mode_MODE_AUTO {
				firsts += decodes.usable()
			}
		case rt.mode(r) == inferencev1.Mode_MODE_DISAGGREGATED:
			e.pool = controlv1.Role_ROLE_PREFILL
			rt.lacks(s, decodes, prefills)
			return prefills.fitness, rt.refusal(e, prefills, nil)
		}
		if rt.mode(r) == inferencev1.Mode_MODE_AUTO {
			if alone, better := rt.alone(s, decodes, wholes, decode, prefill, s.waitMs(decode, firsts, places), prefills.usable()); better {
				s.instead, decode, prefill, firsts = prefill, alone, nil, places
			} else {
				s.instead = alone
			}
		}
	} else if wholes.fitness.usable() {
		decode, _ = rt.alone(s, decodes, wholes, decode, nil, 0, 0)
	}
	aheadMs := s.waitMs(decode, firsts, places)
	if refusal, ok := rt.misses(s, decode, prefill, aheadMs); ok {
		rt.waited(e)
		rt.wouldMiss(s, decodes, prefills, decode, prefill, aheadMs)
		return tooSlow, refusal
	}
	if rt.holds(s, decode, prefill, aheadMs, firsts, places) {
		if e.kept == "" {
			first := cmp.Or(prefill, decode).worker
			e.kept = first.ref.ID + " had enough to do" + rt.occupants(first)
		}
		return held, Refusal{}
	}
	if e.hedges != nil && !hasRoom(decode, prefill) {
		return later, Refusal{}
	}
	rt.dispatch(s, decodes, prefills, decode, prefill)
	return fit, Refusal{}
}

// wholes are the prefill workers that may do all of a request: pools are a preference. A policy
// that predicts nothing keeps to it while there are decode workers. Of many, some will do if a decode
// worker may take the request.
func (rt *Router) wholes(s *search, decodes fitness) *candidates {
	workers := rt.groups().whole
	if !rt.chooses.late() && decodes <= later || rt.mode(s.request) == inferencev1.Mode_MODE_DISAGGREGATED || s.apart && decodes <= later {
		workers = nil
	}
	n := len(workers)
	if decodes.usable() && n > aloneMost {
		model := rt.model(s.request.Model)
		workers = rt.sample(s, workers, aloneMost, func(w *worker) bool { return w.whole && w.of(model) && !s.foreign(w) })
	}
	c := rt.some(s, controlv1.Role_ROLE_DECODE, workers, nil)
	c.passed = n - len(c.all)
	prompts, sent := 0., 0.
	if !s.together {
		prompts, sent = rt.promptsPerMs(s.request.Model)
	}
	if rt.mode(s.request) != inferencev1.Mode_MODE_AUTO {
		prompts = 0
	}
	for i := range c.all {
		one := &c.all[i]
		one.worker.kept = rt.keptFor(one.worker, sent)
		rt.costOf(s, controlv1.Role_ROLE_DECODE, one, rt.cached(s, one.worker), false)
		one.totalMs += rt.slowsMs(s, one, prompts)
		// Where costs are too close to tell apart, prefill workers are left to prompts.
		one.totalMs += one.promptMs*rt.config.NearBest + nearBestMs
	}
	return c
}

// alone is the worker that would do all of a request, and whether that is better than decode with
// prefill, which may be nil and is reached after so much of others.
func (rt *Router) alone(s *search, decodes, wholes *candidates, decode, prefill *candidate, aheadMs float64, senders int) (best *candidate, better bool) {
	// Those that are near the best for decoding are near it for all of the request, too, and of
	// many some will do.
	var fittest []*candidate
	if decodes.fitness.usable() {
		fittest = decodes.fittest()
	}
	first, limit := 0, math.Inf(1)
	if len(fittest) > aloneMost {
		first = rt.random.IntN(len(fittest))
	}
	if decode != nil && decode.fitness == decodes.fitness { // else it was chosen for its path alone
		limit = rt.nearLimit(decode)
	}
	behind := 0. // how long others wait who come after it, for each millisecond of a worker's time
	if senders > 0 {
		behind = float64(max(len(rt.queue.ids)+rt.heldElsewhere()-1-s.ahead, 0)) / float64(senders)
	}
	// Who waits for a prefill worker waits for those that go before it there, and has those come
	// after it who come meanwhile.
	waits, after := aheadMs, behind
	if prefill != nil {
		waits = max(waits, s.aheadMs/float64(max(senders, 1)))
		prompts, _ := rt.promptsPerMs(s.request.Model)
		after += prompts * (waits + prefill.queueMs)
	}
	out := rt.lists.next()
	for i := range fittest {
		c := fittest[(first+i)%len(fittest)]
		if len(fittest) > aloneMost && c.totalMs > limit {
			continue
		}
		out.all = append(out.all, candidate{finding: c.finding})
		alone := &out.all[len(out.all)-1]
		rt.costOf(s, controlv1.Role_ROLE_DECODE, alone, c.cached, false)
		if alone.totalMs += behind * alone.workMs; len(out.all) == aloneMost {
			break
		}
	}
	if wholes.fitness.usable() {
		for _, c := range wholes.fittest() {
			whole := *c
			whole.totalMs += after * (c.workMs + c.decodeMs)
			out.all = append(out.all, whole)
		}
	}
	overload := rt.now.Sub(rt.refusedForLoadAt) < overloadLasts
	if overload && prefill != nil && decode.placeMs > decode.placeCeilingMs {
		if idle := idlest(wholes); idle != nil { // nobody waits for a place where others have one
			return idle, true
		}
	}
	best = rt.pick(out.every())
	best.totalMs += best.delaysMs
	if prefill == nil || best.crowded {
		return best, prefill == nil
	}
	places := decodes.usable() + wholes.usable()
	bestMisses := best.misses || best.missesAfter(s, s.waitMs(best, places, places))
	if misses := decode.misses || prefill.misses || prefill.missesAfter(s, aheadMs); misses != bestMisses {
		return best, misses
	}
	if s.sends {
		return best, false
	}
	// Prompts on a decode worker leave a sequence that begins late more of the steps, so that its
	// tokens are in time: what it is late is lost to them.
	lateMs := 0.
	if s.entry.each > 0 && decode.worker.keepsTPOT {
		lateMs = prefill.transferMs
	}
	if overload && !best.worker.whole && !best.misses && best.queueMs <= prefill.queueMs && best.promptMs+best.decodeMs <= (prefill.workMs+decode.decodeMs+lateMs)*(1+rt.config.NearBest) {
		return best, true
	}
	// Where costs are too close to tell apart, both pools are used.
	return best, best.totalMs+best.promptMs*rt.config.NearBest < decode.totalMs+prefill.totalMs+lateMs+waits+after*prefill.workMs
}

// idlest is the cheapest of those workers that have a place and little to do, and meet the objective;
// nil: none does.
func idlest(all *candidates) (idle *candidate) {
	if !all.fitness.usable() {
		return nil
	}
	for _, c := range all.fittest() {
		if !c.misses && !c.crowded && c.queueMs <= c.ceilingMs && (idle == nil || c.totalMs < idle.totalMs) {
			idle = c
		}
	}
	return idle
}

// overloadLasts is how long after a refusal for want of the workers' time what a placement takes of
// it decides among those that meet the objective, and not whose tokens come first.
const overloadLasts = time.Second

// aloneMost is how many workers of each role alone looks at.
const aloneMost = 12

// dispatch gives the request to the workers picked; prefill is nil if one does all.
func (rt *Router) dispatch(s *search, decodes, prefills *candidates, decode, prefill *candidate) {
	now, r, record := s.now, s.request, s.record
	record.Mode = inferencev1.Mode_MODE_AGGREGATED
	record.Decode = decode.worker.ref.ID
	var fallback bool
	record.Reason, fallback = rt.explain(s, decode, prefill, prefills)
	if waited := now.Sub(s.entry.enqueued); s.entry.kept != "" && waited > 0 {
		record.Reason += "; " + s.entry.waitedFor(waited)
	}
	if !rt.config.OmitCandidates {
		record.Candidates, record.Others = s.shown(decodes, decode, prefills, prefill)
	}
	action := Dispatch{
		ID: r.ID, Decode: decode.worker.ref, Version: s.version, Fallback: fallback, Decision: record,
		ContextTokens: rt.groups().contextTokens[s.version], // 0: they do not say
		DecodeSilence: rt.silence(now, r, decode.worker, decodes.several() || decode.worker.whole),
	}
	d := &dispatched{tenant: r.Tenant, model: r.Model, most: r.MaxNew, decode: decode.worker, at: now}
	if r.Attempt == 0 {
		rt.asked(r, cmp.Or(prefill, decode).uncached)
		if prefill != nil || decode.worker.whole {
			rt.demands[r.Model].prompts.happened(now)
		}
		if prefill != nil {
			rt.demands[r.Model].sent.happened(now)
		}
		rt.arrivals[r.Model].dispatched(cmp.Or(prefill, decode).uncached)
	}
	action.HedgeAfter = rt.hedgeAfter(r, cmp.Or(prefill, decode))
	if h := s.entry.hedges; h != nil {
		record.Hedge = true
		record.Reason = fmt.Sprintf("a hedged attempt, since no first token came from %s within %.1f ms; %s", h.Late.ID, float64(h.After)/float64(time.Millisecond), record.Reason)
	} else if r.Attempt == 0 {
		rt.hedges.allow(rt.config.HedgeShare)
	}
	if first := cmp.Or(prefill, decode); first.measured {
		d.first, d.plainFirst, d.alone = milliseconds(first.firstMs), milliseconds(first.firstMs/first.slowFirst), first.alone
		if r.Attempt == 0 || s.entry.hedges != nil { // else it may have its first token
			record.TtftMs = float64(now.Sub(r.Arrived))/float64(time.Millisecond) + first.firstMs
		}
	}
	if decode.measured {
		d.token, d.plainToken, record.TpotMs = milliseconds(decode.tpotMs), milliseconds(decode.tpotMs/decode.slowToken), decode.tpotMs
	}
	atDecode := &share{at: now, sums: sums{context: r.Tokens, decoding: 1, decodingContext: r.Tokens, blocks: need(decode.worker, r, controlv1.Role_ROLE_DECODE)}}
	if prefill == nil {
		atDecode.tokens = decode.computed()
		decode.worker.prompted.add(now, decode.worker.step.PromptMs(decode.computed(), r.Tokens-decode.computed()))
	} else {
		w := prefill.worker
		d.prefill, action.Prefill, record.Prefill = w, w.ref, w.ref.ID
		record.Mode = inferencev1.Mode_MODE_DISAGGREGATED
		action.PrefillSilence = rt.silence(now, r, w, rt.mode(r) != inferencev1.Mode_MODE_DISAGGREGATED || prefills.several())
		if action.Source = prefill.source.hint(); action.Source != nil {
			record.Source, record.SourceBlocks = action.Source.GetWorkerId(), action.Source.GetBlocks()
		}
		rt.tries(now, path{w.ref, decode.worker.ref}, r.ID)
		w.tries(now)
		w.slowFirst.sent(now)
		rt.turns++
		w.turn = rt.turns
		w.prompted.add(now, w.step.PromptMs(prefill.computed(), r.Tokens-prefill.computed()))
		w.add(r.ID, &share{at: now, sums: sums{tokens: prefill.computed(), context: r.Tokens, blocks: need(w, r, controlv1.Role_ROLE_PREFILL), moving: decode.uncached}})
		atDecode.moving, d.moves = decode.uncached, decode.uncached
		if !rt.speed.known(now) {
			rt.guessTriedAt = now
		}
	}
	decode.worker.tries(now)
	decode.worker.slowToken.sent(now)
	if prefill == nil {
		decode.worker.slowFirst.sent(now)
	}
	decode.worker.add(r.ID, atDecode)
	rt.turns++
	decode.worker.turn = rt.turns
	for _, c := range [...]*candidate{decode, prefill} {
		if c != nil && c.probe {
			c.worker.probe = probe{r.ID, now}
			record.Reason += "; " + c.worker.ref.ID + " reported that it is full, and is tried anyway"
		}
	}
	if first := cmp.Or(prefill, decode); first.expected > 0 {
		record.Reason += fmt.Sprintf("; %d tokens of the prompt are computed there for others", first.expected)
	}
	rt.expect(s, cmp.Or(prefill, decode))
	rt.telling.news = true
	rt.running[r.ID] = d
	rt.out = append(rt.out, action)
	rt.versionSent(r.Model, s.version)
}

// disaggregates reports whether r's prompt is for a prefill worker, if one can send
// to a decode worker that lacks so many tokens of it. In mode auto, a request whose KV
// did not arrive once does not risk it again, and none is where all workers alike serve more.
func (rt *Router) disaggregates(s *search, uncached int) bool {
	r := s.request
	switch rt.mode(r) {
	case inferencev1.Mode_MODE_DISAGGREGATED:
		return true
	case inferencev1.Mode_MODE_AGGREGATED:
		return false
	}
	_, _, unreached := r.unreached()
	return !unreached && !s.together && uncached >= rt.threshold()
}
