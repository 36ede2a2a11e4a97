package scheduler

import (
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
)

// step is the work of one RunStep. members, run.Parts and run.Batch.Sequences run
// parallel.
type step struct {
	members []*sequence
	run     RunStep
	// promptMs is what the prompts were taken to add, 0 if that was not known.
	promptMs     float64
	tried        bool    // a draft of it is a trial
	drafts       []int32 // memory for tokens with their drafts
	prefetchSink int     // see package kvcache
}

// add adds a sequence, and returns its work, which is to be filled in.
func (st *step) add(q *sequence, part Part) *engine.Sequence {
	q.inStep = true
	st.members = append(st.members, q)
	st.run.Parts = append(st.run.Parts, part)
	batch := &st.run.Batch
	batch.Sequences = append(batch.Sequences, engine.Sequence{})
	return &batch.Sequences[len(batch.Sequences)-1]
}

// fetch has the processor read what the end of the step needs of each member, all at a time: it waits
// for many lines of memory at once where none of them has to be there for the next.
func (st *step) fetch() {
	for i, q := range st.members {
		st.prefetchSink += q.computed + int(q.request.Kind) + len(st.run.Batch.Sequences[i].Tokens)
		if last := len(q.output) - 1; last >= 0 {
			st.prefetchSink += int(q.output[last])
		}
	}
}

// plan builds the next step. It says whether there is anything to do.
func (s *Scheduler) plan(now time.Time) bool {
	st := &s.steps[s.turn]
	clear(st.run.Batch.Sequences)
	st.members, st.run.Parts, st.run.Batch.Sequences = st.members[:0], st.run.Parts[:0], st.run.Batch.Sequences[:0]
	st.drafts = st.drafts[:0]

	s.grow(now)
	s.join(now)
	s.sumExpectedGrowth()
	s.prompts = s.prompts[:0]
	context := 0
	for _, q := range s.running {
		switch {
		case q.stalled:
		case q.phase == decoding:
			s.addDecode(st, q)
			context += q.computed + 1
		default:
			q.setLeft(len(q.request.Tokens) - q.computed)
			s.prompts = append(s.prompts, q)
		}
	}
	drafts := s.addDrafts(st)
	s.addPrompts(now, st, len(st.members)+drafts, context+drafts)
	clear(s.prompts)
	if len(st.members) == 0 {
		return false
	}
	st.run.Batch.TokenBuffer = slices.Grow(st.run.Batch.TokenBuffer[:0], len(st.members))
	s.inFlight = st
	s.turn = 1 - s.turn
	return true
}

// join lets sequences whose KV arrived into the batch as long as it has places.
func (s *Scheduler) join(now time.Time) {
	if len(s.arrived) == 0 || len(s.running) >= s.slots {
		return
	}
	slices.SortFunc(s.arrived, before)
	for len(s.arrived) > 0 && len(s.running) < s.slots {
		q := s.arrived[0]
		s.arrived = slices.Delete(s.arrived, 0, 1)
		q.phase = decoding
		s.running = append(s.running, q)
		s.start(now, q)
		s.overtake(s.arrived, q)
	}
}

func (s *Scheduler) start(now time.Time, q *sequence) {
	cached, waited := q.cached*s.config.BlockTokens, now.Sub(q.since)
	if q.started {
		s.act(Resumed{ID: q.request.ID, Blocks: q.table, CachedTokens: cached, Waited: waited})
		return
	}
	q.started = true
	s.act(Started{ID: q.request.ID, Blocks: q.table, CachedTokens: cached, Waited: waited})
}

// addDecode adds one token of a sequence that decodes. If more than one was
// sampled elsewhere, those before the last have no KV yet: they are computed
// first, one a step, without drawing.
func (s *Scheduler) addDecode(st *step, q *sequence) {
	sampled, next := q.sampled(), q.computed-len(q.request.Tokens)
	work := st.add(q, Part{ID: q.request.ID})
	work.Tokens, work.Start, work.Blocks = sampled[next:next+1:next+1], q.computed, q.table
	if next+1 == len(sampled) {
		work.Sample = q.draw(s.turn)
	}
}

// addPrompts fills the prompt budget beside so many tokens of those who decode, with so many tokens
// of context: prompts that run and requests that wait, in one order.
func (s *Scheduler) addPrompts(now time.Time, st *step, decodes, context int) {
	if st.promptMs = 0; len(s.prompts) == 0 && len(s.waiting) == 0 {
		s.withoutPrompts = 0
		return
	}
	s.promptBudget = s.budget(decodes, context)
	budget := &s.promptBudget
	slices.SortFunc(s.prompts, before)
	running := s.prompts
	next, queueOpen := 0, true
	for i := 0; budget.tokens > 0; {
		if len(s.running) >= s.slots || i >= len(s.waiting) {
			queueOpen = false
		}
		if next < len(running) && (!queueOpen || before(running[next], s.waiting[i]) < 0) {
			s.addChunk(st, running[next], budget)
			next++
			continue
		}
		if !queueOpen {
			break
		}
		q := s.waiting[i]
		switch {
		case q.request.Kind != Receive && !q.aged && s.comesSoon(st, q):
			i++
		case q.request.Kind != Receive && budget.fits(len(q.request.Tokens)) && s.acquire(q):
			s.admit(i)
			q.phase = prefilling
			s.running = append(s.running, q)
			s.start(now, q)
			s.addChunk(st, q, budget)
			i = 0
		case q.aged:
			queueOpen = false
			i = len(s.waiting)
		default:
			i++
		}
	}
	if budget.model.Samples >= costKnown {
		st.promptMs = budget.takenMs
	}
	if budget.taken == 0 && !budget.forced { // none is overtaken
		s.withoutPrompts++
		return
	}
	s.withoutPrompts = 0
	for _, q := range running {
		if !q.inStep {
			q.skipped++
		}
	}
}

// comesSoon reports whether a prompt in the step computes the block that q, which waits, lacks
// first. Then q need not compute it too. What is cached is looked up from where the prompt has come to:
// all that wait are asked in every step.
func (s *Scheduler) comesSoon(st *step, q *sequence) bool {
	for i, m := range st.members {
		if !st.run.Parts[i].Prompt {
			continue
		}
		computes := m.computed / s.config.BlockTokens // block
		if computes >= min(len(q.hashes), len(m.hashes)) || m.hashes[computes] != q.hashes[computes] || m.published != computes {
			continue
		}
		cached, ok := s.pool.CachedBehind(m.chain, q.hashes[computes:], q.request.Tokens[computes*s.config.BlockTokens:])
		next := computes + cached
		return ok && next < min(len(q.hashes), len(m.hashes)) && m.hashes[next] == q.hashes[next]
	}
	return false
}

// addChunk adds as much of a sequence's prompt as fits into the budget.
func (s *Scheduler) addChunk(st *step, q *sequence, budget *promptBudget) {
	size, prompt := s.config.BlockTokens, q.request.Tokens
	n := budget.take(q.computed, len(prompt)-q.computed)
	if n == 0 {
		return
	}
	q.skipped = 0
	end := q.computed + n
	first := q.computed / size
	work := st.add(q, Part{ID: q.request.ID, Prompt: true, FirstBlock: first, Blocks: (end+size-1)/size - first})
	work.Tokens, work.Start, work.Blocks = prompt[q.computed:end:end], q.computed, q.table
	if work.Pooling = q.request.Pooling; work.Pooling != nil && q.computed == 0 {
		work.Pooling.Clear() // of an earlier start
	}
	work.Prompt = q.promptScoresWanted(q.computed, end)
	if end == len(prompt) {
		work.Sample = q.draw(s.turn)
	}
}
