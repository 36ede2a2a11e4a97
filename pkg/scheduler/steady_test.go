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
func steady(t fataler, n int) (*scheduler.Scheduler, *int) {
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
	batch := 1
	for range 20 {
		batch = step(s, now, batch)
	}
	return s, &batch
}

// step answers a step of so many sequences and says how many the next has.
func step(s *scheduler.Scheduler, now time.Time, batch int) int {
	for _, action := range s.Handle(now, scheduler.StepDone{Tokens: make([]int32, batch)}) {
		if run, ok := action.(scheduler.RunStep); ok {
			return len(run.Parts)
		}
	}
	return 0
}

func TestSteadyDecodeAllocatesLittle(t *testing.T) {
	const n = 64
	s, batch := steady(t, n)
	now := time.Unix(1, 0)
	perStep := testing.AllocsPerRun(200, func() { *batch = step(s, now, *batch) })
	// One for each Sampled, which is an interface's value, one for the answer,
	// one for RunStep; the rest is the outputs and the cache growing.
	if perStep > 1.5*n {
		t.Errorf("%v allocations a step of %d sequences", perStep, *batch)
	}
}

func BenchmarkDecodeStep(b *testing.B) {
	for _, n := range []int{1, 64, 256} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			now := time.Unix(1, 0)
			s, batch := steady(b, n)
			b.ReportAllocs()
			for b.Loop() {
				if *batch = step(s, now, *batch); *batch == 0 {
					b.StopTimer()
					s, batch = steady(b, n)
					b.StartTimer()
				}
			}
		})
	}
}
