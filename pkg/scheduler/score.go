package scheduler

import (
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// A sequence may ask how likely the tokens of its prompt are (Request.PromptLogprobs). That is known
// of a token when the one before it is computed, so what was not scored yet is not taken from the
// prefix cache. One that is preempted goes on where it was.

// promptTokens is how many tokens were asked, not generated.
func (q *sequence) promptTokens() int { return len(q.request.Tokens) - q.request.Generated }

// findable is the hashes of the blocks that a sequence may find in the prefix cache.
func (s *Scheduler) findable(q *sequence) []kvcache.Hash {
	hashes := s.hashesOf(&q.request)
	if q.request.PromptLogprobs && q.scored < q.promptTokens()-1 {
		return hashes[:min(len(hashes), q.scored/s.config.BlockTokens)]
	}
	return hashes
}

// promptScoresWanted is what a step that computes the tokens from first to before end is asked about the
// prompt; nil: nothing.
func (q *sequence) promptScoresWanted(first, end int) *engine.PromptLogprobs {
	if last := q.promptTokens() - 1; q.request.PromptLogprobs && q.scored < last && first < last {
		return &engine.PromptLogprobs{Next: q.request.Tokens[first+1 : min(end, last)+1], Top: q.request.TopPromptLogprobs}
	}
	return nil
}

// promptLogprobs is what a step said about the prompt of its i-th sequence; false: its logits were
// not finite.
func (e *StepDone) promptLogprobs(i int, work *engine.Sequence) (scores []sampler.Logprobs, finite bool) {
	if e.Err != nil || work.Prompt == nil || i >= len(e.PromptLogprobs) {
		return nil, true
	}
	for _, l := range e.PromptLogprobs[i] {
		if l.Drawn != l.Drawn {
			return nil, false
		}
	}
	return e.PromptLogprobs[i], true
}

// takeScores takes how likely the tokens after those from first on are.
func (s *Scheduler) takeScores(q *sequence, first int, scores []sampler.Logprobs) {
	if skip := q.scored - first; len(scores) > 0 && skip < len(scores) {
		s.act(PromptScored{ID: q.request.ID, Offset: q.scored + 1, Logprobs: scores[skip:]})
		q.scored = first + len(scores)
	}
}
