package scheduler_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// steady is a scheduler with n sequences that decode for a long time.
func steady(t fataler, n int) (*scheduler.Scheduler, *int, []int32) {
	pool := kvcache.NewPool(n*1000, 32, "model", "class")
	s, err := scheduler.New(scheduler.Config{
		Pool: pool, BlockTokens: 32, ContextTokens: 32000, MaxBatchTokens: 4096, MaxSequences: n, ChunkTokens: 2048, MaxWaiting: n,
	})
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	now := time.Unix(0, 0)
	for id := range n {
		s.Handle(now, scheduler.Submit{Request: scheduler.Request{
			ID: scheduler.SequenceID(id), Tokens: prompt(10), MaxTokens: 1 << 30, Salt: strconv.Itoa(id), Sampling: sampler.Params{Seed: 1},
		}})
	}
	batch, tokens := 1, make([]int32, n)
	for range 40 { // a block of each
		batch = step(s, now, batch, tokens)
	}
	return s, &batch, tokens
}

// step answers a step of so many sequences and says how many the next has.
func step(s *scheduler.Scheduler, now time.Time, batch int, tokens []int32) int {
	for _, action := range s.Handle(now, scheduler.StepDone{Tokens: tokens[:batch]}) {
		if run, ok := action.(*scheduler.RunStep); ok {
			return len(run.Parts)
		}
	}
	return 0
}

// TestSteadyDecodeAllocatesNothing: not for tokens, not for the blocks that fill up and
// are published meanwhile, not for the plan of the next step.
func TestSteadyDecodeAllocatesNothing(t *testing.T) {
	for _, n := range []int{1, 64} {
		s, batch, tokens := steady(t, n)
		now := time.Unix(1, 0)
		const steps = 100 // each sequence fills three blocks
		if got := testing.AllocsPerRun(5, func() {
			for range steps {
				*batch = step(s, now, *batch, tokens)
			}
		}); got != 0 {
			t.Errorf("%v allocations in %d steps of %d sequences", got, steps, n)
		}
		if *batch != n || s.PoolStats().Published < n*19 {
			t.Errorf("%d of %d sequences decode, %d blocks are published", *batch, n, s.PoolStats().Published)
		}
	}
}

func BenchmarkDecodeStep(b *testing.B) {
	for _, n := range []int{1, 64, 256} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			now := time.Unix(1, 0)
			s, batch, tokens := steady(b, n)
			b.ReportAllocs()
			for b.Loop() {
				if *batch = step(s, now, *batch, tokens); *batch == 0 {
					b.StopTimer()
					s, batch, tokens = steady(b, n)
					b.StartTimer()
				}
			}
		})
	}
}
