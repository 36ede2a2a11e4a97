package scheduler_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// took is how long a step takes on an engine that counts tokens and what they look at.
func took(run *scheduler.RunStep) time.Duration {
	d := 2 * time.Millisecond
	for _, work := range run.Batch.Sequences {
		for i := range work.Tokens {
			d += 100*time.Microsecond + time.Duration(work.Start+i+1)*2*time.Microsecond
		}
	}
	return d
}

// roomy is a world with blocks for long prompts.
func roomy(t fataler, config scheduler.Config) *world {
	config.BlockTokens, config.ContextTokens, config.MaxBatchTokens = 4, 2000, 600
	config.MaxSequences, config.ChunkTokens, config.MaxWaiting = 16, 512, 64
	return newWorld(t, 2000, config)
}

// long is a prompt that no other begins like.
func long(n, first int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(i % 3)
	}
	tokens[0] = int32(first)
	return tokens
}

// TestStepBudget: while others decode, a long prompt makes no step longer by more than
// the budget, once it is known what steps take, and uses most of it.
func TestStepBudget(t *testing.T) {
	const budget = 5 * time.Millisecond
	w := roomy(t, scheduler.Config{StepBudget: budget})
	for i := range 8 {
		w.submit(scheduler.Request{ID: scheduler.SequenceID(i + 1), Tokens: long(10, i), MaxTokens: 200, Stop: never})
	}
	for range 40 {
		w.finishStep(took(w.inFlight))
	}
	l := w.submit(scheduler.Request{ID: 99, Tokens: long(400, 50), MaxTokens: 5, Stop: never})
	steps, used := 0, time.Duration(0)
	for l.finished == nil {
		alone := scheduler.RunStep{}
		var more time.Duration
		for i, part := range w.inFlight.Parts {
			if !part.Prompt {
				alone.Batch.Sequences = append(alone.Batch.Sequences, w.inFlight.Batch.Sequences[i])
			}
		}
		if len(alone.Batch.Sequences) < len(w.inFlight.Parts) {
			more = took(w.inFlight) - took(&alone)
			chunk := len(w.inFlight.Batch.Sequences[len(w.inFlight.Parts)-1].Tokens)
			// The fit is of the steps so far, which were not like these.
			if steps++; steps > 20 && more > budget*11/10 && chunk > w.config.BlockTokens {
				t.Errorf("step %d: %v more for %d tokens", steps, more, chunk)
			}
			used += more
		}
		w.finishStep(took(w.inFlight))
	}
	if mean := used / time.Duration(steps); mean < budget/2 {
		t.Errorf("%v of %v is used", mean, budget)
	}
	w.finishAll()
}

// TestWithoutBudget a step takes as much of a prompt as it may.
func TestWithoutBudget(t *testing.T) {
	w := roomy(t, scheduler.Config{})
	for i := range 8 {
		w.submit(scheduler.Request{ID: scheduler.SequenceID(i + 1), Tokens: long(10, i), MaxTokens: 50, Stop: never})
	}
	for range 20 {
		w.finishStep(took(w.inFlight))
	}
	w.submit(scheduler.Request{ID: 99, Tokens: long(1500, 50), MaxTokens: 5, Stop: never})
	w.finishStep(took(w.inFlight))
	if n := len(w.inFlight.Batch.Sequences[8].Tokens); n != 512 {
		t.Errorf("a chunk of %d tokens", n)
	}
	w.finishAll()
}

// TestShortPromptsGoFirst: one that comes while a long one is computed does not wait
// for its end.
func TestShortPromptsGoFirst(t *testing.T) {
	w := roomy(t, scheduler.Config{})
	big := w.submit(scheduler.Request{ID: 1, Kind: scheduler.PrefillOnly, Tokens: long(1900, 1), MaxTokens: 5})
	w.submit(scheduler.Request{ID: 2, Kind: scheduler.PrefillOnly, Tokens: long(1800, 2), MaxTokens: 5})
	small := w.submit(scheduler.Request{ID: 3, Kind: scheduler.PrefillOnly, Tokens: long(100, 3), MaxTokens: 5})
	w.finishStep(time.Millisecond)
	if part := w.inFlight.Parts[0]; part.ID != 3 {
		t.Errorf("%+v comes first", part)
	}
	w.finishStep(time.Millisecond)
	if small.finished == nil || big.finished != nil {
		t.Errorf("the short one: %+v, the long one: %+v", small.finished, big.finished)
	}
	w.finishAll()
}

// TestPromptsDoNotWaitForEachOther: where steps are long enough already, each prompt
// has one of its own, and the first has its token as soon as it can; where an empty
// step takes long, they share one.
func TestPromptsDoNotWaitForEachOther(t *testing.T) {
	for _, c := range []struct {
		base, token time.Duration
		most        int
	}{{time.Millisecond, time.Millisecond, 1}, {10 * time.Millisecond, 10 * time.Microsecond, 5}} {
		w := roomy(t, scheduler.Config{})
		step := func() int {
			d, n := c.base, 0
			for i, work := range w.inFlight.Batch.Sequences {
				d += time.Duration(len(work.Tokens)) * c.token
				if w.inFlight.Parts[i].Prompt {
					n++
				}
			}
			w.finishStep(d)
			return n
		}
		for i := range 30 {
			w.submit(scheduler.Request{ID: scheduler.SequenceID(i + 1), Tokens: long(4+4*(i%5), i), MaxTokens: 1})
			for w.inFlight != nil {
				step()
			}
		}
		for i := range 6 {
			w.submit(scheduler.Request{ID: scheduler.SequenceID(i + 100), Tokens: long(100, i), MaxTokens: 1})
		}
		step() // the first one, alone
		if n := step(); n != c.most {
			t.Errorf("a step of %v and %v a token has %d prompts, want %d", c.base, c.token, n, c.most)
		}
		w.finishAll()
	}
}

// TestStepBudgetOfUnevenSteps: the budget is kept, too, where the first token of a prompt
// adds much more than the others, which a model of tokens and positions takes for the
// time of an empty step once every step has some.
func TestStepBudgetOfUnevenSteps(t *testing.T) {
	const budget = 5 * time.Millisecond
	w := roomy(t, scheduler.Config{StepBudget: budget})
	for i := range 4 {
		w.submit(scheduler.Request{ID: scheduler.SequenceID(i + 1), Tokens: long(4, i), MaxTokens: 300, Stop: never})
	}
	adds := func() time.Duration {
		var d time.Duration
		for i, part := range w.inFlight.Parts {
			if part.Prompt {
				d = max(d, 3*time.Millisecond) + time.Duration(len(w.inFlight.Batch.Sequences[i].Tokens))*50*time.Microsecond
			}
		}
		return d
	}
	over, steps := 0, 0
	for id := scheduler.SequenceID(100); steps < 200; {
		if len(w.inFlight.Parts) < 6 && steps >= 40 {
			w.submit(scheduler.Request{ID: id, Tokens: long(150, int(id)), MaxTokens: 1, Stop: never})
			id++
		}
		more := adds()
		if steps++; steps > 100 && more > budget {
			over++
		}
		w.finishStep(2*time.Millisecond + more)
	}
	if over > 10 {
		t.Errorf("%d of 100 steps are over the budget", over)
	}
}
