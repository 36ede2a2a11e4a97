package simulated_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// TestLinkCarriesRealBytes: KV arrives at the link's bandwidth, counted in the
// bytes of a real engine, one write after the other.
func TestLinkCarriesRealBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		real := simulated.SliceBytes(cfg.Spec, cfg.BlockTokens)
		if real != 2*1*4*4*2 { // keys and values, 1 head of 4, 4 tokens, bf16
			t.Fatalf("a slice of %d bytes", real)
		}
		cfg.LinkBytesPerSecond = float64(real) / 0.010 // 10 ms a slice
		e := newEngine(t, cfg)
		write := func(blocks ...kvcache.BlockID) {
			if err := e.Pages().Write(0, blocks, make([]byte, len(blocks)*e.Pages().Layout().SliceBytes)); err != nil {
				t.Error(err)
			}
		}
		began := time.Now()
		var both sync.WaitGroup
		both.Go(func() { write(0, 1) })
		both.Go(func() { write(2, 3, 4) })
		both.Wait()
		if took := time.Since(began); took != 50*ms {
			t.Errorf("5 slices took %v, want 50 ms", took)
		}
		write(7)
		if took := time.Since(began); took != 60*ms {
			t.Errorf("6 slices took %v, want 60 ms", took)
		}
		if err := e.Pages().Write(0, []kvcache.BlockID{99}, make([]byte, e.Pages().Layout().SliceBytes)); err == nil || time.Since(began) != 60*ms {
			t.Errorf("a block that is not there: %v, after %v", err, time.Since(began))
		}
	})
}

// TestCloseEndsTheLink: who waits for the link when the engine is closed leaves
// with an error.
func TestCloseEndsTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.LinkBytesPerSecond = 1
		e := newEngine(t, cfg)
		failed := make(chan error)
		go func() {
			failed <- e.Pages().Write(0, []kvcache.BlockID{0}, make([]byte, e.Pages().Layout().SliceBytes))
		}()
		synctest.Wait()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := <-failed; err == nil {
			t.Error("a write through a closed link succeeded")
		}
	})
}

// timer counts what waits and what is closed.
type timer struct{ waits, closed *atomic.Int64 }

func (t timer) Wait(ctx context.Context, d time.Duration) error {
	t.waits.Add(1)
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err()
}

func (t timer) Close() error {
	t.closed.Add(1)
	return nil
}

// TestNewTimer: steps and link wait by the timers that were given, cancelling ends
// them at once, and Close closes them.
func TestNewTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		var waits, closed atomic.Int64
		cfg.NewTimer = func() simulated.Timer { return timer{&waits, &closed} }
		cfg.StepTime = latency.Model{BaseMs: 1e6}
		cfg.LinkBytesPerSecond = 1e6
		e, err := simulated.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		step(t, e, sequence(5))
		afterStep := waits.Load()
		if err := e.Pages().Write(0, []kvcache.BlockID{0}, make([]byte, e.Pages().Layout().SliceBytes)); err != nil {
			t.Error(err)
		}
		if afterStep == 0 || waits.Load() == afterStep {
			t.Errorf("the step waited %d times, the link %d", afterStep, waits.Load()-afterStep)
		}
		for _, timeout := range []time.Duration{0, ms, ms} {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			began := time.Now()
			if _, err := e.Step(ctx, engine.Batch{Sequences: []engine.Sequence{sequence(5)}}); err == nil {
				t.Error("a cancelled step succeeded")
			}
			if took := time.Since(began); took != timeout {
				t.Errorf("a step that was cancelled after %v took %v", timeout, took)
			}
			cancel()
		}
		if err := e.Close(); err != nil || closed.Load() != 2 {
			t.Errorf("%d of two timers are closed, %v", closed.Load(), err)
		}
	})
}

// TestProfileGivesTheTime: prompts and single tokens have times of their own.
func TestProfileGivesTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.Profile = &latency.Profile{
			Version: latency.ProfileVersion,
			Prefill: []latency.Regime{{Terms: latency.Terms{BaseMs: 5, PerTokenMs: 1, PerSquareMs: 0.5}}},
			Decode:  []latency.Regime{{UpTo: 1, Terms: latency.Terms{BaseMs: 3}}, {Terms: latency.Terms{BaseMs: 4, PerTokenMs: 1}}},
			Limits:  &latency.Limits{FLOPsPerSecond: 7},
		}
		e := newEngine(t, cfg)
		one := engine.Sequence{Tokens: []int32{3}, Start: 19, Blocks: []kvcache.BlockID{10, 11, 12, 13, 14}}
		other := engine.Sequence{Tokens: []int32{3}, Start: 3, Blocks: []kvcache.BlockID{20}}
		for _, c := range []struct {
			name      string
			sequences []engine.Sequence
			want      time.Duration
		}{
			{"a prompt", []engine.Sequence{sequence(4)}, 17 * ms},
			{"a token", []engine.Sequence{one}, 3 * ms},
			{"two tokens", []engine.Sequence{one, other}, 6 * ms},
			{"mixed", []engine.Sequence{sequence(4), one, other}, 19 * ms},
		} {
			if out := step(t, e, c.sequences...); out.Compute != c.want {
				t.Errorf("%s takes %v, want %v", c.name, out.Compute, c.want)
			}
		}
		if limits := e.(*simulated.Engine).Limits(); limits.FLOPsPerSecond != 7 {
			t.Errorf("limits %+v", limits)
		}
		cfg.Profile = &latency.Profile{}
		if _, err := simulated.New(cfg); err == nil {
			t.Error("an empty profile was taken")
		}
	})
}
