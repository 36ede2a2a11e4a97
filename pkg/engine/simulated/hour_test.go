package simulated_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// TestAnHour runs the real driver and scheduler for an hour of virtual time under
// a Poisson load with prompts that share beginnings, twice: every request ends
// with its tokens, no block is lost, and both hours are the same to the
// nanosecond.
func TestAnHour(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	first, second := hour(t), hour(t)
	if !slices.Equal(first, second) {
		t.Error("two runs of the same hour differ")
	}
	if len(first) < 3000 {
		t.Errorf("only %d requests", len(first))
	}
	slices.Sort(first)
	if p50 := first[len(first)/2]; p50 < 100*ms || p50 > 2*time.Second {
		t.Errorf("half of the requests took %v", p50)
	}
}

// hour returns what each request took, in the order in which they came.
func hour(t *testing.T) (took []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.Blocks, cfg.BlockTokens, cfg.MaxBatchTokens, cfg.MaxSequences = 600, 16, 256, 16
		cfg.Profile = &latency.Profile{
			Version: latency.ProfileVersion,
			Prefill: []latency.Regime{{Terms: latency.Terms{BaseMs: 20, PerTokenMs: 1, PerSquareMs: 1e-3}}},
			Decode:  []latency.Regime{{UpTo: 4, Terms: latency.Terms{BaseMs: 30, PerContextTokenMs: 0.01}}, {Terms: latency.Terms{BaseMs: 25, PerTokenMs: 1, PerContextTokenMs: 0.01}}},
		}
		cfg.Trouble = simulated.Trouble{Seed: 3, Jitter: 0.1, Stalls: []simulated.Stall{{At: 30 * time.Minute, For: 5 * time.Second}}}
		driver, err := workerdriver.NewDriver(workerdriver.Config{
			Engine: newEngine(t, cfg), Limits: worker.Limits{ChunkTokens: 128, MaxWaiting: 10000}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { driver.Run(ctx) })

		chance := rand.New(rand.NewPCG(1, 2))
		began := time.Now()
		var requests sync.WaitGroup
		var mu sync.Mutex
		for i := 0; ; i++ {
			timer := time.NewTimer(time.Duration(chance.ExpFloat64() * float64(time.Second)))
			<-timer.C
			if time.Since(began) > time.Hour {
				break
			}
			prompt := make([]int32, 20+chance.IntN(150))
			family := int32(chance.IntN(5))
			for j := range prompt {
				prompt[j] = (family*31 + int32(j)*7) % vocabulary
				if j >= 64 {
					prompt[j] = int32(chance.IntN(vocabulary))
				}
			}
			tokens := 1 + chance.IntN(30)
			mu.Lock()
			took = append(took, 0)
			mu.Unlock()
			sequence := driver.Submit(scheduler.Request{ID: driver.Reserve(), Tokens: prompt, MaxTokens: tokens})
			requests.Go(func() {
				start := time.Now()
				if got := follow(t, sequence); got != tokens {
					t.Errorf("request %d got %d of %d tokens", i, got, tokens)
				}
				mu.Lock()
				took[i] = time.Since(start)
				mu.Unlock()
			})
		}
		requests.Wait()
		if load, _ := driver.Load(); load.BlocksFree != load.BlocksTotal || load.RunningSequences != 0 || load.WaitingSequences != 0 {
			t.Errorf("at the end: %+v", load)
		}
		if stats := driver.PoolStats(); stats.Misuses != 0 || stats.HitTokens == 0 {
			t.Errorf("pool: %+v", stats)
		}
		cancel()
		running.Wait()
	})
	return took
}

// follow reads a sequence to its end and counts its tokens.
func follow(t *testing.T, s *workerdriver.Sequence) (tokens int) {
	for range s.Ready() {
		for _, action := range s.Take() {
			switch a := action.(type) {
			case *scheduler.Sampled:
				tokens++
			case scheduler.Refused:
				t.Errorf("refused: %+v", a)
				return tokens
			case scheduler.Finished:
				return tokens
			}
		}
	}
	return tokens
}
