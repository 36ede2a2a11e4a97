package scheduler

import (
	"slices"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/speculation"
)

// A sequence that decodes may have drafts of its next tokens in a step, which the
// engine verifies: what its output constraint forces and what stands in its own text, or what the engine
// makes. They are no part of its text.

// drafts is what a sequence knows of its drafts.
type drafts struct {
	lookup     speculation.Lookup
	acceptance speculation.Acceptance
	trial      speculation.Trial
	// verified were in steps so far, and accepted of those were right.
	verified, accepted int

	// Of the step that is planned, or in flight.
	tokens []int32 // none if the engine makes them
	kinds  []speculation.Kind
}

// drafting is what a scheduler knows of all drafts.
type drafting struct {
	acceptance speculation.OfAll
	steps      speculation.StepTimes
	times      speculation.DraftTimes // of the engine's own
	planner    speculation.Planner
	budget     speculation.Budget
	candidates []speculation.Candidate
	members    []int // of the step, by candidate
	chances    []float64
}

// leastTrial is which share of a step a trial costs at least.
const leastTrial = 1.0 / 32

// leastChance is the chance of a draft, with those before it, from which on no further ones are looked up.
const leastChance = 1.0 / 32

// lookupAtOnce is how many tokens of a text are looked at in a step, at most: a long prompt
// is taken in over several.
const lookupAtOnce = 1024

// addDrafts adds drafts to a step that has all who decode and no prompt yet. It returns how
// many.
func (s *Scheduler) addDrafts(st *step) (n int) {
	st.tried = false
	if s.config.MaxDrafts == 0 {
		return 0
	}
	contexts := s.findDrafts(st)
	if len(s.drafting.candidates) == 0 || !s.drafting.steps.Known(len(st.members)) {
		return 0
	}
	// A block of a prompt always fits beside all who decode.
	left := s.config.MaxBatchTokens - s.config.BlockTokens - len(st.members)
	draftMs := s.drafting.times.Ms(len(st.members))
	ms := func(tokens int) float64 {
		return s.drafting.steps.Ms(tokens, contexts) + draftMs*float64(tokens-len(st.members))
	}
	s.drafting.planner.Lengths(s.drafting.candidates, len(st.members), min(left, s.drafting.steps.Reach(len(st.members))), ms)
	alone := ms(len(st.members))
	// A trial has a price also where the times say that it has none: they may be wrong.
	trialMs := max(ms(len(st.members)+1)-alone, alone*leastTrial)
	if draftMs > 0 && !s.drafting.times.Known(len(st.members)) {
		trialMs = min(trialMs, alone) // the few drafts so far may have been disturbed
	}
	s.drafting.budget.Step(alone, trialMs)
	for i, c := range s.drafting.candidates {
		q, work := st.members[s.drafting.members[i]], &st.run.Batch.Sequences[s.drafting.members[i]]
		if c.Drafts == 0 && q.drafts.trial.Due() && !st.tried && s.drafting.budget.Spend(trialMs) {
			c.Drafts, st.tried = 1, true // one in a step: the next size of it is tried, too
		}
		if c.Drafts = s.fitDrafts(q, min(c.Drafts, left)); c.Drafts > 0 {
			if s.config.EngineDrafts {
				work.Blocks, work.Sample.DraftRequest = q.table, engine.DraftRequest{Sequence: uint64(q.request.ID), Most: c.Drafts, Left: q.totalTokens - q.length()}
			} else {
				st.draft(q, work, c.Drafts)
			}
			left -= c.Drafts
			n += c.Drafts
		}
	}
	return n
}

// findDrafts fills the candidates of a step, and returns the sum of its contexts.
func (s *Scheduler) findDrafts(st *step) (contexts int) {
	d := &s.drafting
	d.candidates, d.members, d.chances = d.candidates[:0], d.members[:0], d.chances[:0]
	for i, q := range st.members {
		contexts += q.computed + 1
		most := min(s.config.MaxDrafts, q.totalTokens-q.length()-1)
		if st.run.Batch.Sequences[i].Sample == nil || most <= 0 {
			continue
		}
		if q.drafts == nil {
			q.drafts = new(drafts)
		}
		first := len(d.chances)
		if s.config.EngineDrafts {
			if len(q.drafts.kinds) < most {
				q.drafts.kinds = make([]speculation.Kind, most) // all speculation.ByModel
			}
			d.chances = append(d.chances, q.drafts.acceptance.Of(&d.acceptance, speculation.ByModel))
		} else {
			d.lookUp(q, most)
			most = len(q.drafts.tokens)
		}
		if len(d.chances) > first {
			d.members = append(d.members, i)
			d.candidates = append(d.candidates, speculation.Candidate{Chances: d.chances[first:], Most: most})
		}
	}
	return contexts
}

// lookUp finds at most so many drafts of a sequence, and their chances: what an output constraint forces, and
// then what stands in its text.
func (d *drafting) lookUp(q *sequence, most int) {
	own := q.drafts
	own.tokens, own.kinds = own.tokens[:0], own.kinds[:0]
	all := 1.0
	add := func(token int32, kind speculation.Kind) {
		chance := own.acceptance.Of(&d.acceptance, kind)
		own.tokens, own.kinds, d.chances = append(own.tokens, token), append(own.kinds, kind), append(d.chances, chance)
		all *= chance
	}
	forced := q.forced.Tokens
	for i, token := range forced[:min(len(forced), most)] {
		if q.forced.Open && i == len(forced)-1 {
			add(token, speculation.ForcedLast)
		} else {
			add(token, speculation.Forced)
		}
	}
	if len(forced) > 0 && !q.forced.Open {
		return // the output ends there, or there is more of it than drafts
	}
	text := speculation.Text{Prompt: q.request.Tokens, Generated: q.sampled()}
	if !own.lookup.Extend(text, lookupAtOnce) {
		return
	}
	for len(own.tokens) < most && all >= leastChance {
		token, kind, ok := own.lookup.Next(text, own.tokens)
		if !ok {
			return
		}
		add(token, kind)
	}
}

// draft adds drafts to the work of a sequence in a step.
func (st *step) draft(q *sequence, work *engine.Sequence, n int) {
	first := len(st.drafts)
	st.drafts = append(st.drafts, work.Tokens...)
	st.drafts = append(st.drafts, q.drafts.tokens[:n]...)
	work.Tokens = st.drafts[first:len(st.drafts):len(st.drafts)]
	work.Blocks, work.Sample.Drafts = q.table, n // fitDrafts may have added a block
}

// fitDrafts is how many of n drafts a sequence has blocks for. If one more block is needed
// it takes that, which it would soon need in any case, as long as every other could have
// one, too.
func (s *Scheduler) fitDrafts(q *sequence, n int) int {
	fit := len(q.table)*s.config.BlockTokens - q.computed - 1
	if n > fit && len(q.table) < q.blocksNeeded && s.pool.Available() > len(s.running) && s.lengthen(q) {
		fit += s.config.BlockTokens
	}
	return max(min(n, fit), 0)
}

// reclaim takes back the blocks that sequences have for drafts alone, and says whether there
// were any.
func (s *Scheduler) reclaim() (any bool) {
	for _, q := range s.running {
		needs := kvcache.BlocksFor(q.computed+1, s.config.BlockTokens)
		if q.drafts == nil || q.phase != decoding || len(q.table) <= needs {
			continue
		}
		s.pool.Release(q.table[needs:])
		q.table = slices.Clip(q.table[:needs]) // others may have the longer one
		s.freed++
		any = true
	}
	return any
}

// made takes what the engine's own drafts took, in a step with so many sequences that decode.
func (d *drafting) made(st *step, e *StepDone, decodes int) {
	made := 0
	for _, drafts := range e.Drafts {
		made += len(drafts)
	}
	if st.tried {
		d.budget.Charge(e.Reading.Seconds() * 1e3)
	}
	d.times.Observe(decodes, made, e.Drafting-e.Reading)
}

// known is how many of the tokens of a sequence in a step are no drafts.
func known(work *engine.Sequence) int {
	if work.Sample == nil {
		return len(work.Tokens)
	}
	return len(work.Tokens) - work.Sample.Drafts
}

// drafts are those of the i-th sequence of a step that were verified: what it was given, or what the
// engine made.
func (e *StepDone) drafts(i int, work *engine.Sequence) []int32 {
	switch {
	case work.Sample == nil:
		return nil
	case work.Sample.DraftRequest.Most > 0 && i < len(e.Drafts):
		return e.Drafts[i]
	}
	return work.Tokens[known(work):]
}

// accepted is how many of its drafts the i-th sequence of a step got right; false if the
// engine does not say, or made more than it may.
func (e *StepDone) accepted(i int, work *engine.Sequence, drafts int) (n int, ok bool) {
	switch {
	case drafts == 0:
		return 0, true
	case drafts > max(work.Sample.Drafts, work.Sample.DraftRequest.Most):
		return 0, false
	case i >= len(e.Accepted) || e.Accepted[i] < 0 || int(e.Accepted[i]) > drafts:
		return 0, false
	}
	return int(e.Accepted[i]), true
}

// forced is what is forced after what the i-th sequence of a step drew.
func (e *StepDone) forced(i int) (f engine.ForcedTokens) {
	if i < len(e.Forced) {
		f = e.Forced[i]
	}
	return f
}

// draftLogprobs is how likely the j-th draft of the i-th sequence was; nil if the engine does
// not say.
func (e *StepDone) draftLogprobs(i, j int) *sampler.Logprobs {
	if i >= len(e.DraftLogprobs) || j >= len(e.DraftLogprobs[i]) {
		return nil
	}
	return &e.DraftLogprobs[i][j]
}

// verified takes the outcome of a sequence's drafts.
func (s *Scheduler) verified(q *sequence, n, accepted int) {
	d := q.drafts
	d.acceptance.Verified(&s.drafting.acceptance, d.kinds[:n], accepted)
	d.trial.Tried(accepted > 0)
	d.verified += n
	d.accepted += accepted
}
