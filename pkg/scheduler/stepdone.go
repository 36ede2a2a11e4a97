package scheduler

import (
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

func (s *Scheduler) stepDone(e StepDone) {
	st := s.inFlight
	if st == nil {
		return
	}
	s.inFlight = nil
	st.fetch()
	if e.Err == nil && len(e.Tokens) != len(st.members) {
		e.Err = fmt.Errorf("scheduler: the step gave %d tokens for %d sequences", len(e.Tokens), len(st.members))
	}
	if e.Err == nil {
		s.observe(st, &e)
	}
	for i, q := range st.members {
		part, work := &st.run.Parts[i], &st.run.Batch.Sequences[i]
		q.inStep = false
		drafts := e.drafts(i, work)
		accepted, verified := e.accepted(i, work, len(drafts))
		drew := work.Sample == nil || e.Err == nil && e.drew(i)
		scores, likely := e.promptLogprobs(i, work)
		drew = drew && likely
		switch {
		case e.Err != nil:
		case drew:
			// The KV is good, whatever became of the sequence meanwhile.
			q.computed = e.computed(i, work, part.Prompt, 0)
			s.publish(q)
		default:
			s.pool.Invalidate(q.table)
		}
		if q.phase == over {
			s.release(q)
			continue
		}
		if part.Prompt {
			q.prefillCompute += e.Compute + e.Drafting
		} else {
			q.decodeCompute += e.Compute + e.Drafting
		}
		switch {
		case e.Err != nil:
			s.finish(q, Failed, e.Err)
		case !verified:
			s.finish(q, Failed, errors.New("scheduler: the step did not say how many drafts were right"))
		case !likely:
			s.notFinite(q, work.Start+len(work.Tokens))
		case work.Prompt != nil && len(scores) != len(work.Prompt.Next):
			s.finish(q, Failed, errUnlikely)
		default:
			s.takeScores(q, work.Start, scores)
			if work.Sample != nil {
				s.takeDrawn(q, &e, i, work, drafts, accepted)
			}
		}
	}
	clear(st.members)
}

// takeDrawn takes what the i-th sequence of a step drew: those of its drafts that were right, and the
// token after them.
func (s *Scheduler) takeDrawn(q *sequence, e *StepDone, i int, work *engine.Sequence, drafts []int32, accepted int) {
	sample, known := work.Sample, known(work)
	verified := len(drafts)
	q.forced = e.forced(i)
	if e.Tokens[i] == sampler.Later {
		verified = accepted // nothing was drawn in the place of the others
	}
	if verified > 0 {
		s.verified(q, verified, accepted)
	}
	for j, token := range drafts[:accepted] {
		var logprobs *sampler.Logprobs
		if sample.Logprobs {
			if logprobs = e.draftLogprobs(i, j); logprobs == nil {
				s.finish(q, Failed, errUnlikely)
				return
			}
		}
		if s.takeToken(q, token, logprobs); q.phase == over {
			return // as if there had been no drafts behind it
		}
		if e.Tokens[i] != sampler.None { // else nothing of it is shared
			q.computed = e.computed(i, work, false, j+1)
			s.publish(q)
		}
	}
	switch token := e.Tokens[i]; {
	case token == sampler.Later:
	case token == sampler.NoneAllowed:
		s.finish(q, Failed, ErrNoTokenAllowed)
	case token == sampler.OutOfEffort:
		s.finish(q, Failed, ErrConstraintEffort)
	case token < 0:
		s.notFinite(q, work.Start+known+accepted)
	case !sample.Logprobs:
		s.takeToken(q, token, nil)
	case len(e.Logprobs) != len(e.Tokens):
		s.finish(q, Failed, errUnlikely)
	default:
		s.takeToken(q, token, &e.Logprobs[i])
	}
}

// errUnlikely fails a sequence that asked for log probabilities and got none.
var errUnlikely = errors.New("scheduler: the step did not say how likely the token was")

// ErrNoTokenAllowed fails a sequence whose constraint leaves no token to go on with, not even
// one that ends it.
var ErrNoTokenAllowed = errors.New("no token of the vocabulary goes on as the form of the output demands")

// ErrConstraintEffort fails a sequence whose constraint took all the work that one output may.
var ErrConstraintEffort = errors.New("finding the tokens that the form of the output allows took all the work that one output may take")

// computed is how many tokens of the i-th sequence of a step, with so many of its drafts, have their KV.
// What a draw that was put off comes after is computed again in the next step: the last token, or the
// chunk of a prompt, which begins at a block.
func (e *StepDone) computed(i int, work *engine.Sequence, prompt bool, drafts int) int {
	switch later := work.Sample != nil && e.Tokens[i] == sampler.Later; {
	case later && prompt:
		return work.Start
	case later:
		return work.Start + known(work) + drafts - 1
	}
	return work.Start + known(work) + drafts
}

// drew reports that the logits of the i-th sequence of a step were good, whatever its constraint left of them.
func (e *StepDone) drew(i int) bool {
	token := e.Tokens[i]
	return token >= 0 || token == sampler.NoneAllowed || token == sampler.OutOfEffort || token == sampler.Later
}

// notFinite ends a sequence whose logits are not finite, with so many tokens in its blocks.
func (s *Scheduler) notFinite(q *sequence, tokens int) {
	found := &NotFinite{Blocks: q.table, Tokens: tokens, Received: q.received, From: q.from}
	for _, id := range q.table {
		found.Origins = append(found.Origins, s.pool.Origin(id))
	}
	s.end(q, Finished{Reason: Failed, Err: &engine.NotFiniteError{Layer: -1, Position: -1, Uninspected: true}, NotFinite: found})
}

// takeToken takes a token that a step drew.
func (s *Scheduler) takeToken(q *sequence, token int32, logprobs *sampler.Logprobs) {
	// Where this moves what was drawn before, that stays as it was where it is.
	s.drawn = append(s.drawn, Sampled{ID: q.request.ID, Offset: q.offset(), Token: token, Logprobs: logprobs})
	drawn := &s.drawn[len(s.drawn)-1]
	if q.drafts != nil {
		drawn.Drafts, drawn.AcceptedDrafts = q.drafts.verified, q.drafts.accepted
	}
	s.act(drawn)
	q.output = append(q.output, token)
	q.pace.begin(s.now, len(q.output))
	q.phase = decoding
	reason := q.ended(token)
	if reason == 0 && q.request.Kind == PrefillOnly {
		reason = PrefillDone
	}
	if reason != 0 {
		s.finish(q, reason, nil)
	}
}
