package routing

import (
	"cmp"
	"fmt"
	"slices"
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
	// longerMs is how much longer than it is its prompt is taken to be (lengths.go).
	longerMs           float64
	aggregatedPrefills *candidates
	// aheadAtPeers and aheadAtPeersMs are those of them that wait at other routers.
	aheadAtPeers   int
	aheadAtPeersMs float64
	poolUse        // of all workers
	// possible is how many workers may decode the request, or do all of it, now or later.
	possible int
	// best is the decode worker by which was decided whether one worker does all; nil: none may take it, for
	// lacksDecode.
	best        *candidate
	lacksDecode string
	// runnerUp is what mode auto did not choose: the prefill worker of a pair, or the best aggregated one.
	runnerUp *candidate
}

// foreign reports whether a worker is of another version than is searched for.
func (s *search) foreign(w *worker) bool {
	return s.version != (Version{}) && w.version != s.version
}

// decide searches workers for e and dispatches it if there are some, which it says. A
// request that has not begun may go to another version that is served, or is refused for that
// one's load, if its own has no worker that could ever take it.
func (rt *Router) decide(now time.Time, e *entry) (fitness, Refusal) {
	e.byReports = false
	defer func() {
		if !e.byReports {
			e.byReportsSince = time.Time{}
		}
	}()
	result, refusal := rt.decideFor(now, e, e.version)
	if e.request.Version != (Version{}) || result <= later || result == tooSlow {
		return result, refusal
	}
	own := *e // what is told of a request that no version serves is of its own one
	for _, o := range rt.served[e.request.Model] {
		v := o.current()
		if v == e.version || v == (Version{}) {
			continue
		}
		if other, why := rt.decideFor(now, e, v); other <= later || other == tooSlow && !rt.mayReturn(e) {
			e.version = v
			return other, why
		}
	}
	e.refused, e.pool, e.prefillMayAggregate = own.refused, own.pool, own.prefillMayAggregate
	return result, refusal
}

// mayReturn reports whether a worker of the request's version is registered that has lost its connection.
func (rt *Router) mayReturn(e *entry) bool {
	return slices.ContainsFunc(rt.order, func(w *worker) bool {
		return w.version == e.version && !w.connected && !w.draining && w.of(rt.model(e.request.Model))
	})
}

// decideFor is decide for one version.
func (rt *Router) decideFor(now time.Time, e *entry, v Version) (fitness, Refusal) {
	r := &e.request
	r.MaxNew = e.maxNew
	if left := rt.groups().contextTokens[v] - r.Tokens; left > 0 { // workers end the answer there
		r.MaxNew = min(r.MaxNew, left)
	}
	rt.searches++
	rt.lists.used = 0
	s := &search{now: now, entry: e, request: r, record: &controlv1.Decision{}, number: rt.searches, version: v, poolUse: rt.poolUse(r)}
	e.pool, e.refused = controlv1.Role_ROLE_DECODE, nil
	decodes := rt.look(s, e.pool, nil)
	aggregatedPrefills := rt.aggregatedPrefills(s, decodes.fitness)
	s.aggregatedPrefills, e.prefillMayAggregate = aggregatedPrefills, rt.anyOf(r, aggregatedPrefills)
	if !decodes.fitness.usable() && !aggregatedPrefills.fitness.usable() {
		best := min(decodes.fitness, aggregatedPrefills.fitness)
		if decodes.fitness == excluded && best == tooSmall {
			best = excluded // a decode worker that comes may be larger
		}
		var prefills *candidates // what it waits for, where no decode worker could take it soon
		if aggregatedPrefills.fitness < decodes.fitness {
			prefills = aggregatedPrefills
		}
		rt.noteLack(s, decodes, prefills)
		return best, rt.refusal(e, decodes, aggregatedPrefills)
	}
	best := min(decodes.fitness, aggregatedPrefills.fitness)
	s.possible = decodes.possible(best) + aggregatedPrefills.possible(best)
	switch { // a worker that may hang is no choice beside one that is well
	case aggregatedPrefills.fitness > decodes.fitness:
		aggregatedPrefills = rt.lists.next()
	case decodes.fitness == suspected && aggregatedPrefills.fitness < suspected:
		decodes = rt.lists.next()
		decodes.reason = "those that could take it may hang"
	}
	rt.lookAhead(s)
	holder, aggregatedHolder := rt.moveToHolder(s, decodes, aggregatedPrefills)
	p, found := rt.place(s, holder, aggregatedHolder)
	if !found && holder != decodes && p.prefills.fitness > later { // none can send to the holder, and will not soon
		p, found = rt.place(s, decodes, aggregatedPrefills)
	}
	if !found {
		e.pool = controlv1.Role_ROLE_PREFILL
		rt.noteLack(s, decodes, p.prefills)
		return p.prefills.fitness, rt.refusal(e, p.prefills, nil)
	}
	decode, prefill, prefills := p.decode, p.prefill, p.prefills
	aheadMs := s.waitMs(decode, p.promptWorkers, p.decodeWorkers)
	if refusal, ok := rt.misses(s, decode, prefill, aheadMs); ok {
		rt.noteMiss(s, decodes, prefills, decode, prefill, aheadMs)
		return tooSlow, refusal
	}
	if rt.holds(s, decode, prefill, aheadMs, p.promptWorkers, p.decodeWorkers) {
		if e.waitsFor == "" {
			first := cmp.Or(prefill, decode).worker
			e.waitsFor = first.ref.ID + " had enough to do" + rt.occupants(first)
		}
		return held, Refusal{}
	}
	if e.hedges != nil && !hasRoom(decode, prefill) {
		return later, Refusal{}
	}
	rt.dispatch(s, decodes, prefills, decode, prefill)
	return fit, Refusal{}
}

// placement is the workers chosen for a request. prefill is nil where it is aggregated, and prefills,
// those that prefill is chosen from, where nothing else was considered.
type placement struct {
	decode, prefill *candidate
	prefills        *candidates
	// promptWorkers are how many workers share the prompts that wait, decodeWorkers how many the answers.
	promptWorkers, decodeWorkers int
}

// place chooses the decode worker first, since it has to hold the result, then the mode, then the
// prefill worker. It finds none where the request has to be disaggregated and no prefill worker may
// take it.
func (rt *Router) place(s *search, decodes, aggregatedPrefills *candidates) (p placement, found bool) {
	mode := rt.mode(s.request)
	p.decodeWorkers = decodes.usable() + aggregatedPrefills.usable()
	p.promptWorkers = p.decodeWorkers
	if decodes.fitness.usable() {
		p.decode = rt.pick(decodes.fittest())
	}
	s.best, s.lacksDecode = p.decode, decodes.reason
	if p.decode == nil || !rt.disaggregates(s, p.decode.uncached) {
		if aggregatedPrefills.fitness.usable() {
			p.decode, _ = rt.bestAggregated(s, decodes, aggregatedPrefills, p.decode, nil, 0, 0)
		}
		return p, true
	}
	p.decode, p.prefills = rt.pair(s, decodes, p.decode)
	switch {
	case p.prefills.fitness.usable():
		rt.predictTransfers(s, p.decode, p.prefills)
		p.prefill, p.promptWorkers = rt.pick(p.prefills.fittest()), p.prefills.usable()
		rt.transferFrom(s, &p.decode.cost, p.prefill)
		if mode == inferencev1.Mode_MODE_AUTO && !s.allPromptsOnPrefill {
			p.promptWorkers += decodes.usable()
		}
	case mode == inferencev1.Mode_MODE_DISAGGREGATED:
		return p, false
	}
	if mode == inferencev1.Mode_MODE_AUTO {
		aheadMs := s.waitMs(p.decode, p.promptWorkers, p.decodeWorkers)
		aggregated, better := rt.bestAggregated(s, decodes, aggregatedPrefills, p.decode, p.prefill, aheadMs, p.prefills.usable())
		s.runnerUp = aggregated
		if better {
			s.runnerUp, p.decode, p.prefill, p.promptWorkers = p.prefill, aggregated, nil, p.decodeWorkers
		}
	}
	return p, true
}

// dispatch gives the request to the workers picked; prefill is nil if one does all.
func (rt *Router) dispatch(s *search, decodes, prefills *candidates, decode, prefill *candidate) {
	now, r, record := s.now, s.request, s.record
	record.Mode = inferencev1.Mode_MODE_AGGREGATED
	record.Decode = decode.worker.ref.ID
	var fallback bool
	record.Reason, fallback = rt.explain(s, decode, prefill, prefills)
	if waited := now.Sub(s.entry.enqueued); s.entry.waitsFor != "" && waited > 0 {
		record.Reason += "; " + s.entry.waitedFor(waited)
	}
	if !rt.config.OmitCandidates {
		record.Candidates, record.Others = s.shown(decodes, decode, prefills, prefill)
	}
	action := Dispatch{
		ID: r.ID, Decode: decode.worker.ref, Version: s.version, Fallback: fallback, Decision: record,
		ContextTokens: rt.groups().contextTokens[s.version], // 0: they do not say
		DecodeSilence: rt.silence(now, r, decode.worker, s.possible > 1),
	}
	d := &dispatched{tenant: r.Tenant, model: r.Model, level: s.entry.levelKey(), most: r.MaxNew, decode: decode.worker, at: now}
	if rt.outcomeCounts(s.entry) {
		d.outcome, d.eachToken = rt.demandFor(r.Model).came(now, true), r.TPOT
		if r.TTFT > 0 {
			d.firstDue = r.Arrived.Add(r.TTFT)
		}
	}
	if r.Attempt == 0 {
		rt.traffic[r.Model].recordDispatch(now, r, cmp.Or(prefill, decode).uncached, prefill != nil || decode.worker.takesAggregated, prefill != nil)
	}
	action.HedgeAfter = rt.hedgeAfter(r, cmp.Or(prefill, decode))
	if h := s.entry.hedges; h != nil {
		record.Hedge = true
		record.Reason = fmt.Sprintf("a hedged attempt, since no first token came from %s within %.1f ms; %s", h.Late.ID, milliseconds(h.After), record.Reason)
	} else if r.Attempt == 0 {
		rt.hedges.allow(rt.config.HedgeShare)
	}
	if first := cmp.Or(prefill, decode); first.measured {
		d.first, d.plainFirst, d.alone = durationOf(first.firstMs), durationOf(first.firstMs/first.slowFirst), first.alone
		if r.Attempt == 0 || s.entry.hedges != nil { // else it may have its first token
			record.TtftMs = milliseconds(now.Sub(r.Arrived)) + first.firstMs
		}
	}
	if decode.measured {
		d.token, d.plainToken, record.TpotMs = durationOf(decode.tpotMs), durationOf(decode.tpotMs/decode.slowToken), decode.tpotMs
	}
	atDecode := &ownLoad{sharing: rt.share(s, decode.worker), requestLoad: requestLoad{at: now, loadSum: loadSum{count: 1, context: r.Tokens, decoding: 1, decodingContext: r.Tokens}}}
	atDecode.blocks = need(decode.worker, r, controlv1.Role_ROLE_DECODE) - atDecode.shared
	if prefill == nil {
		atDecode.tokens = decode.computed()
		decode.worker.promptTime.add(now, decode.worker.step.PromptMs(decode.computed(), r.Tokens-decode.computed()))
	} else {
		d.prefill, d.moves, atDecode.moving = prefill.worker, decode.uncached, decode.uncached
		rt.dispatchPrefill(s, &action, prefills, decode, prefill)
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
			c.worker.probe = probe{r.ID, now, c.worker.blocksFor(c.uncached)}
			record.Reason += "; " + c.worker.ref.ID + " reported that it is full, and is tried anyway"
		}
	}
	if first := cmp.Or(prefill, decode); first.expected > 0 {
		record.Reason += fmt.Sprintf("; %d tokens of the prompt are computed there for others", first.expected)
	}
	rt.expect(s, cmp.Or(prefill, decode))
	rt.outgoing.changed = true
	rt.running[r.ID] = d
	rt.out = append(rt.out, action)
	rt.versionSent(r.Model, s.version)
}

// dispatchPrefill adds the prefill worker to a dispatch.
func (rt *Router) dispatchPrefill(s *search, action *Dispatch, prefills *candidates, decode, prefill *candidate) {
	now, r, record := s.now, s.request, s.record
	w := prefill.worker
	action.Prefill, record.Prefill = w.ref, w.ref.ID
	record.Mode = inferencev1.Mode_MODE_DISAGGREGATED
	action.PrefillSilence = rt.silence(now, r, w, rt.mode(r) != inferencev1.Mode_MODE_DISAGGREGATED || prefills.possible(prefills.fitness) > 1)
	if action.Source = prefill.source.hint(); action.Source != nil {
		record.Source, record.SourceBlocks = action.Source.GetWorkerId(), action.Source.GetBlocks()
	}
	rt.tries(now, path{w.ref, decode.worker.ref}, r.ID)
	w.tries(now)
	w.slowFirst.sent(now)
	rt.turns++
	w.turn = rt.turns
	w.promptTime.add(now, w.step.PromptMs(prefill.computed(), r.Tokens-prefill.computed()))
	// It shares nothing: the blocks are free as soon as they are sent, long before the answer ends.
	atPrefill := &ownLoad{requestLoad: requestLoad{at: now, loadSum: loadSum{count: 1, tokens: prefill.computed(), context: r.Tokens, moving: decode.uncached}}}
	atPrefill.blocks = need(w, r, controlv1.Role_ROLE_PREFILL)
	w.add(r.ID, atPrefill)
	if !rt.speed.known(now) {
		rt.guessTriedAt = now
	}
}

// disaggregates reports whether r's prompt is for a prefill worker, if one can send
// to a decode worker that lacks so many tokens of it. In mode auto, a request whose KV
// did not arrive once does not risk it again, and none does where aggregated serving meets more SLOs.
func (rt *Router) disaggregates(s *search, uncached int) bool {
	r := s.request
	switch rt.mode(r) {
	case inferencev1.Mode_MODE_DISAGGREGATED:
		return true
	case inferencev1.Mode_MODE_AGGREGATED:
		return false
	}
	_, _, unreached := r.unreached()
	return !unreached && s.use != allAggregated && uncached >= rt.threshold()
}
