package scheduler

import (
	"math/bits"

	"github.com/tandem-serving/tandem/pkg/api"
)

// Load is how busy a scheduler is.
type Load struct {
	// WaitingSequences have no blocks yet.
	WaitingSequences int
	// WaitingTokens are what the waiting ones have to compute before their first
	// token, without what was cached when their wait began. Receive sequences count 0.
	WaitingTokens int
	// RunningSequences are in the batch, or will be as soon as it has a place.
	RunningSequences int
	// RunningContextTokens are the tokens so far of those.
	RunningContextTokens int
	// RunningPromptTokens are what is left of the prompts among those.
	RunningPromptTokens int
	// DecodingSequences are those, running, reserved or waiting, that decode here once their KV is,
	// and DecodingContextTokens the tokens so far of those of them that have blocks.
	DecodingSequences, DecodingContextTokens int
	// PromptTokens are WaitingTokens and RunningPromptTokens by what is left of each prompt:
	// at n, prompts of which n bits express how many tokens are left. Of equal priority and
	// without a Request.FirstIn, those of less come first.
	PromptTokens [api.PromptLengths]int
	// BlocksFree could be had by a new sequence, cached ones included.
	BlocksFree int
	// BlocksExpected of those are expected to be needed by sequences that have some.
	BlocksExpected int
	// BlocksReserved wait for KV.
	BlocksReserved int
	// BlocksQuarantined wait until nothing can write them.
	BlocksQuarantined int
	// BlocksTotal is all blocks.
	BlocksTotal int
	// StepPromptTokens is how many tokens of one prompt a step computes now, at most.
	StepPromptTokens int
	// CrowdedStepPromptTokens is the same if at least one sequence decoded; 0: it is not known what
	// steps cost.
	CrowdedStepPromptTokens int
}

// Waits adds a prompt that waits, of which so many tokens are left.
func (l *Load) Waits(left int) { l.prompt(left, &l.WaitingTokens) }

func (l *Load) prompt(left int, tokens *int) {
	*tokens += left
	l.PromptTokens[min(bits.Len(uint(left)), api.PromptLengths-1)] += left
}

// Load is the load now. It takes time in proportion to the sequences known.
func (s *Scheduler) Load() Load {
	stats := s.pool.Stats()
	l := Load{
		BlocksFree:        stats.Free + stats.Cached,
		BlocksExpected:    min(s.reserveForGrowth(), stats.Free+stats.Cached),
		BlocksReserved:    stats.Reserved,
		BlocksQuarantined: stats.Quarantined,
		BlocksTotal:       stats.Total,
	}
	l.WaitingSequences = len(s.waiting)
	l.RunningSequences = len(s.running) + len(s.arrived)
	for _, q := range s.waiting {
		if q.request.Kind != Receive {
			l.Waits(q.left)
		}
		if q.grows() {
			l.DecodingSequences++
		}
	}
	decodes, context := 0, 0 // of a step now
	for _, q := range s.running {
		switch q.phase {
		case prefilling:
			l.prompt(len(q.request.Tokens)-q.computed, &l.RunningPromptTokens)
		case decoding:
			decodes, context = decodes+1, context+q.computed+1
		}
		l.runs(q)
	}
	for _, q := range s.arrived {
		l.runs(q)
	}
	for _, q := range s.receiving {
		l.decodes(q)
	}
	l.StepPromptTokens, l.CrowdedStepPromptTokens = s.stepPromptTokens(decodes, context)
	return l
}

func (l *Load) runs(q *sequence) {
	l.RunningContextTokens += q.length()
	l.decodes(q)
}

// decodes counts a sequence that has blocks, if it decodes here.
func (l *Load) decodes(q *sequence) {
	if q.grows() {
		l.DecodingSequences++
		l.DecodingContextTokens += q.length()
	}
}

// stepPromptTokens is how many tokens of one prompt a step could compute beside those that
// decode now, with so many tokens of context, and beside at least one; 0 while that would be a
// guess.
func (s *Scheduler) stepPromptTokens(decodes, context int) (now, crowded int) {
	now = s.budget(decodes, context).longPrompt()
	switch {
	case decodes > 0:
		return now, now
	case s.stepCost.steps.Model().Samples < costKnown:
		return now, 0
	}
	return now, s.budget(1, 1).longPrompt()
}

// Draining says whether Drain came, and no Undrain since.
func (s *Scheduler) Draining() bool { return s.draining }

// Idle says whether no sequence is known any more: all that were taken are
// released.
func (s *Scheduler) Idle() bool { return len(s.sequences) == 0 }
