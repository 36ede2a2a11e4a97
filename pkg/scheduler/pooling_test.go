package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// mean is what a pool of tokens has to give, where the hidden state of a token is the token.
func mean(tokens []int32) []float32 {
	sum := 0.0
	for _, token := range tokens {
		sum += float64(token)
	}
	return []float32{float32(sum / float64(len(tokens)))}
}

// A request for hidden states computes each token of its prompt, whatever is cached, and leaves
// nothing in the cache.
func TestHiddenStates(t *testing.T) {
	w := newWorld(t, 30, standard)
	submit := func(id scheduler.SequenceID, pool *engine.Pooling) *life {
		l := w.submit(scheduler.Request{ID: id, Tokens: prompt(21), MaxTokens: 1, Stop: never, Pooling: pool})
		w.finishAll()
		if l.finished == nil || l.finished.Reason != scheduler.Length || !l.released {
			t.Fatalf("%d: %+v", id, l.finished)
		}
		return l
	}
	for id := scheduler.SequenceID(1); id < 7; id += 3 {
		pools := []*engine.Pooling{engine.NewPooling(1), engine.NewPooling(1)}
		cachedBefore := len(w.cache)
		before := submit(id, pools[0])
		if len(w.cache) != cachedBefore {
			t.Errorf("%d blocks are cached, %d were before", len(w.cache), cachedBefore)
		}
		submit(id+1, nil)
		after := submit(id+2, pools[1])
		for i, l := range []*life{before, after} {
			if got := pools[i].Mean(); l.cached != 0 || !slices.Equal(got, mean(prompt(21))) {
				t.Errorf("%d: %d tokens were cached, the mean is %v, want %v", l.request.ID, l.cached, got, mean(prompt(21)))
			}
		}
	}
}

// One that is preempted begins again.
func TestHiddenStatesOfThePreempted(t *testing.T) {
	w := crowded(t, 12)
	var lives []*life
	var pools []*engine.Pooling
	for i := range 8 {
		r := scheduler.Request{ID: scheduler.SequenceID(i + 1), Tokens: []int32{int32(i), 1, 2}, MaxTokens: 18}
		if i%2 == 1 {
			r.Tokens, r.MaxTokens, r.Pooling, r.Priority = slices.Concat(r.Tokens, prompt(17)), 1, engine.NewPooling(1), -1
		}
		pools = append(pools, r.Pooling)
		lives = append(lives, w.submit(r))
	}
	for w.inFlight != nil {
		w.finishStep(time.Millisecond)
	}
	w.finishAll()
	for i, l := range lives {
		if l.finished == nil || l.finished.Reason != scheduler.Length && l.finished.Reason != scheduler.Stopped {
			t.Fatalf("%d: %+v", l.request.ID, l.finished)
		}
		if pools[i] == nil {
			continue
		}
		if got, want := pools[i].Mean(), mean(slices.Concat([]int32{int32(i), 1, 2}, prompt(17))); !slices.Equal(got, want) {
			t.Errorf("%d, preempted %v: the mean is %v, want %v", l.request.ID, l.preempted, got, want)
		}
	}
}
