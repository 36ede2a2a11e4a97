package scheduler_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// A prompt counts once as looked up, whether it was fetched or gave way; what was fetched for it is
// no hit.
func TestPromptsAreLookedUpOnce(t *testing.T) {
	w := newWorld(t, 40, standard)
	prompt := seeded(18, 1)
	fetch := w.submit(scheduler.Request{ID: 1, Kind: scheduler.Restore, Tokens: prompt[:16]})
	w.arrive(fetch, 0)
	w.submit(scheduler.Request{ID: 2, Tokens: prompt, Fetched: 16, MaxTokens: 1})
	w.transferDone(fetch)
	w.finishAll()
	if s := w.scheduler.PoolStats(); s.LookupTokens != 18 || s.HitTokens != 0 {
		t.Errorf("of a prompt of 18 tokens that is fetched, %d are looked up and %d hit", s.LookupTokens, s.HitTokens)
	}
	w.submit(scheduler.Request{ID: 3, Tokens: prompt, MaxTokens: 1})
	w.finishAll()
	if s := w.scheduler.PoolStats(); s.LookupTokens != 36 || s.HitTokens != 16 {
		t.Errorf("after the same prompt again, %d tokens are looked up and %d hit", s.LookupTokens, s.HitTokens)
	}
}

func TestPromptsThatGiveWayAreLookedUpOnce(t *testing.T) {
	w := crowded(t, 12)
	for i := range 4 {
		w.submit(scheduler.Request{ID: scheduler.SequenceID(i + 1), Tokens: []int32{int32(i), 1, 2}, MaxTokens: 18})
	}
	for w.inFlight != nil {
		w.finishStep(time.Millisecond)
	}
	w.finishAll()
	if s := w.scheduler.PoolStats(); w.preemptions == 0 || s.LookupTokens != 4*3 || s.HitTokens != 0 {
		t.Errorf("%d preemptions: of 12 tokens of prompts, %d are looked up and %d hit", w.preemptions, s.LookupTokens, s.HitTokens)
	}
}

// A prompt that has to be computed whole is not looked up.
func TestPromptsThatUseNoCacheAreNotLookedUp(t *testing.T) {
	w := newWorld(t, 40, standard)
	w.submit(scheduler.Request{ID: 1, Tokens: prompt(18), MaxTokens: 1, Pooling: engine.NewPooling(1)})
	w.submit(scheduler.Request{ID: 2, Tokens: prompt(18), MaxTokens: 1, PromptLogprobs: true})
	w.finishAll()
	if s := w.scheduler.PoolStats(); s.LookupTokens != 0 {
		t.Errorf("%d tokens are looked up", s.LookupTokens)
	}
}
