package scheduler_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// A prompt that is scored is computed whatever is cached, and again from where it was when it was
// preempted; what it computes is cached for others. The world checks what is said of each token.
func TestPromptIsScored(t *testing.T) {
	w := newWorld(t, 32, scheduler.Config{
		BlockTokens: 2, ContextTokens: 40, MaxBatchTokens: 64, MaxSequences: 16, ChunkTokens: 4, MaxWaiting: 16,
	})
	tokens := []int32{1, 2, 3, 1, 2, 3, 1, 2, 3}
	w.submit(scheduler.Request{ID: 1, Tokens: tokens, MaxTokens: 2})
	w.finishAll()
	scored := w.submit(scheduler.Request{ID: 2, Tokens: tokens, MaxTokens: 2, PromptLogprobs: true})
	w.finishAll()
	plain := w.submit(scheduler.Request{ID: 3, Tokens: tokens, MaxTokens: 2})
	w.finishAll()
	if scored.cached != 0 || scored.scored != len(tokens)-1 || plain.cached != 8 || plain.scored != 0 {
		t.Errorf("%d tokens cached and %d scored, then %d and %d", scored.cached, scored.scored, plain.cached, plain.scored)
	}
	// One of which some tokens were generated before it was started again is scored up to these.
	again := w.submit(scheduler.Request{ID: 4, Tokens: tokens, Generated: 4, MaxTokens: 6, PromptLogprobs: true})
	w.finishAll()
	if again.scored != 4 {
		t.Errorf("%d of 4 tokens scored", again.scored)
	}
}

// Prompts that give their blocks to others are scored once all the same.
func TestPreemptedPromptIsScored(t *testing.T) {
	w := crowded(t, 12)
	var lives []*life
	for i := range 8 {
		lives = append(lives, w.submit(scheduler.Request{
			ID: scheduler.SequenceID(i + 1), Tokens: []int32{int32(i % 5), 1, 2, 3, 1}, MaxTokens: 16, PromptLogprobs: true,
		}))
	}
	for w.inFlight != nil {
		w.finishStep(time.Millisecond)
	}
	w.finishAll()
	if w.preemptions == 0 {
		t.Error("nobody was preempted")
	}
	for _, l := range lives {
		if l.scored != 4 || len(l.output) != 16 {
			t.Errorf("%d: %d of 4 tokens scored, %d generated", l.request.ID, l.scored, len(l.output))
		}
	}
}
