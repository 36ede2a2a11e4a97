package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Prompts that begin alike and wait together compute what they share once; what follows each
// computes itself. Others go meanwhile.
func TestWhatIsBeingComputedIsAwaited(t *testing.T) {
	config := standard
	config.ContextTokens, config.MaxSequences, config.MaxWaiting, config.ChunkTokens, config.MaxBatchTokens = 100, 16, 16, 64, 80
	w := newWorld(t, 200, config)
	busy := w.submit(scheduler.Request{ID: 1, Kind: scheduler.Full, Tokens: []int32{6, 6, 6}, MaxTokens: 30, Stop: never})
	lives := map[scheduler.SequenceID]*life{}
	for id := scheduler.SequenceID(2); id < 8; id++ { // all before the next step
		tokens := append(prompt(20), int32(id%7), int32(id%5))
		lives[id] = w.submit(scheduler.Request{ID: id, Kind: scheduler.Full, Tokens: tokens, MaxTokens: 2, Stop: never})
	}
	lives[9] = w.submit(scheduler.Request{ID: 9, Kind: scheduler.Full, Tokens: slices.Repeat([]int32{5}, 22), MaxTokens: 2, Stop: never})
	computed := map[scheduler.SequenceID]int{}
	var first []scheduler.SequenceID
	for w.inFlight != nil && busy.finished == nil {
		for i, part := range w.inFlight.Parts {
			if part.Prompt && part.ID > 1 {
				computed[part.ID] += len(w.inFlight.Batch.Sequences[i].Tokens)
				if len(first) < 2 {
					first = append(first, part.ID)
				}
			}
		}
		w.finishStep(time.Millisecond)
	}
	if !slices.Equal(first, []scheduler.SequenceID{2, 9}) {
		t.Errorf("the first prompts are %v", first)
	}
	for id, l := range lives {
		want := 2
		if id == 2 || id == 9 {
			want = 22
		}
		if l.finished == nil || computed[id] != want {
			t.Errorf("%d computes %d tokens, want %d; finished %v", id, computed[id], want, l.finished != nil)
		}
	}
}

// BenchmarkManyAwaitOnePrompt is a step while many requests wait for what a long prompt that they share computes.
func BenchmarkManyAwaitOnePrompt(b *testing.B) {
	config := standard
	config.BlockTokens, config.ContextTokens, config.MaxSequences, config.MaxWaiting, config.ChunkTokens, config.MaxBatchTokens = 16, 200000, 300, 300, 512, 2048
	w := newWorld(b, 20000, config)
	tokens := prompt(100000)
	for id := scheduler.SequenceID(1); id <= 256; id++ {
		w.scheduler.Handle(w.now, scheduler.Submit{Request: scheduler.Request{ID: id, Kind: scheduler.Full, Tokens: append(slices.Clone(tokens), int32(id%7)), MaxTokens: 2, Stop: never}})
	}
	for range 190 {
		w.scheduler.Handle(w.now, scheduler.StepDone{Tokens: []int32{-1}, Compute: time.Millisecond})
	}
	for b.Loop() {
		w.scheduler.Handle(w.now, scheduler.StepDone{Tokens: []int32{-1}, Compute: time.Millisecond})
	}
}
