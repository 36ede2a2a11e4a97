package simulated_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
)

const ms = time.Millisecond

// times runs n steps of 10 ms each, as far as nothing is wrong, and returns what
// each took; negative if it failed.
func times(t *testing.T, trouble simulated.Trouble, n int) []time.Duration {
	t.Helper()
	cfg := config()
	cfg.StepTime, cfg.Trouble = latency.Model{BaseMs: 10}, trouble
	e := newEngine(t, cfg)
	var took []time.Duration
	for range n {
		began := time.Now()
		out, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{sequence(5)}})
		d := time.Since(began)
		if err == nil && out.Compute != d {
			t.Errorf("a step of %v says %v", d, out.Compute)
		}
		if err != nil {
			d = -d
		}
		took = append(took, d)
	}
	return took
}

func TestTrouble(t *testing.T) {
	for _, c := range []struct {
		name    string
		trouble simulated.Trouble
		want    []time.Duration
	}{
		{"none", simulated.Trouble{}, []time.Duration{10 * ms, 10 * ms, 10 * ms}},
		{"slow", simulated.Trouble{Slow: 2.5}, []time.Duration{25 * ms, 25 * ms, 25 * ms}},
		{"a stall within a step", simulated.Trouble{Stalls: []simulated.Stall{{At: 14 * ms, For: 100 * ms}}}, []time.Duration{10 * ms, 110 * ms, 10 * ms}},
		{"a stall between two steps", simulated.Trouble{Stalls: []simulated.Stall{{At: 10 * ms, For: 100 * ms}}}, []time.Duration{10 * ms, 110 * ms, 10 * ms}},
		{"two stalls in one step, in any order", simulated.Trouble{Stalls: []simulated.Stall{{At: 50 * ms, For: 40 * ms}, {At: 5 * ms, For: 42 * ms}}}, []time.Duration{92 * ms, 10 * ms, 10 * ms}},
		{"stalls that overlap count once", simulated.Trouble{Stalls: []simulated.Stall{{At: 5 * ms, For: 40 * ms}, {At: 15 * ms, For: 5 * ms}, {At: 25 * ms, For: 30 * ms}, {At: 55 * ms, For: 10 * ms}}}, []time.Duration{70 * ms, 10 * ms, 10 * ms}},
		{"death", simulated.Trouble{Dies: true, DiesAt: 15 * ms}, []time.Duration{10 * ms, -10 * ms, 0}},
		{"death from the start", simulated.Trouble{Dies: true}, []time.Duration{0, 0, 0}},
		{"every step fails", simulated.Trouble{FailProbability: 1}, []time.Duration{-10 * ms, -10 * ms, -10 * ms}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := times(t, c.trouble, 3); !slices.Equal(got, c.want) {
					t.Errorf("steps took %v, want %v", got, c.want)
				}
			})
		})
	}
}

func TestTroubleIsOfTheSeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		draw := func(seed uint64) []time.Duration {
			return times(t, simulated.Trouble{Seed: seed, Jitter: 0.2, FailProbability: 0.3}, 200)
		}
		if !slices.Equal(draw(1), draw(1)) {
			t.Error("one seed has two runs")
		}
		if slices.Equal(draw(1), draw(2)) {
			t.Error("two seeds have one run")
		}
		failed := 0
		for _, d := range draw(3) {
			if d < 0 {
				failed++
			}
		}
		if failed < 35 || failed > 85 { // 60 expected, deviation 6.5
			t.Errorf("%d of 200 steps failed with probability 0.3", failed)
		}
	})
}

// TestJitterHasItsSpread: mean and deviation are those that were asked for.
func TestJitterHasItsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const jitter, n = 0.25, 4000
		var sum, squares float64
		for _, d := range times(t, simulated.Trouble{Seed: 9, Jitter: jitter}, n) {
			x := float64(d) / float64(10*ms)
			sum, squares = sum+x, squares+x*x
		}
		mean := sum / n
		spread := math.Sqrt(squares/n - mean*mean)
		if math.Abs(mean-1) > 0.02 || math.Abs(spread-jitter) > 0.02 {
			t.Errorf("mean %.3f and spread %.3f, want 1 and %v", mean, spread, jitter)
		}
	})
}

// TestStallsOnlyAdd: a run with stalls takes as long as without, and the stalls
// that it met.
func TestStallsOnlyAdd(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var stalls []simulated.Stall
		at := time.Duration(0)
		for range rapid.IntRange(0, 5).Draw(rt, "stalls") {
			at += time.Duration(rapid.IntRange(1, 40).Draw(rt, "gap")) * ms
			s := simulated.Stall{At: at, For: time.Duration(rapid.IntRange(1, 30).Draw(rt, "length")) * ms}
			stalls, at = append(stalls, s), at+s.For
		}
		var got time.Duration
		synctest.Test(t, func(t *testing.T) {
			for _, d := range times(t, simulated.Trouble{Stalls: stalls}, 8) {
				got += d
			}
		})
		want := 80 * ms
		for _, s := range stalls {
			if s.At < want {
				want += s.For
			}
		}
		if got != want {
			rt.Fatalf("8 steps of 10 ms with stalls %v took %v, want %v", stalls, got, want)
		}
	})
}

func TestTroubleValidate(t *testing.T) {
	for _, c := range []struct {
		says    string
		trouble simulated.Trouble
	}{
		{"jitter", simulated.Trouble{Jitter: -1}}, {"jitter", simulated.Trouble{Jitter: math.NaN()}}, {"jitter", simulated.Trouble{Jitter: 3}},
		{"factor", simulated.Trouble{Slow: -1}}, {"factor", simulated.Trouble{Slow: math.NaN()}}, {"factor", simulated.Trouble{Slow: 1e9}},
		{"probability", simulated.Trouble{FailProbability: 1.1}}, {"probability", simulated.Trouble{FailProbability: math.NaN()}},
		{"negative", simulated.Trouble{Dies: true, DiesAt: -1}},
		{"stall", simulated.Trouble{Stalls: []simulated.Stall{{At: -1, For: 1}}}}, {"stall", simulated.Trouble{Stalls: []simulated.Stall{{At: 1}}}},
	} {
		cfg := config()
		cfg.Trouble = c.trouble
		if _, err := simulated.New(cfg); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: error %v, which should speak of %q", c.trouble, err, c.says)
		}
	}
}

// TestDeviceIsShared: two engines on one device take turns, a cancelled one leaves
// the queue.
func TestDeviceIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.StepTime, cfg.Device = latency.Model{BaseMs: 10}, simulated.NewDevice()
		began := time.Now()
		done := make(chan time.Duration)
		for range 3 {
			e := newEngine(t, cfg)
			go func() {
				if _, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{sequence(5)}}); err != nil {
					t.Error(err)
				}
				done <- time.Since(began)
			}()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*ms)
		defer cancel()
		if _, err := newEngine(t, cfg).Step(ctx, engine.Batch{Sequences: []engine.Sequence{sequence(5)}}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if got := []time.Duration{<-done, <-done, <-done}; !slices.Equal(got, []time.Duration{10 * ms, 20 * ms, 30 * ms}) {
			t.Errorf("done at %v", got)
		}
	})
}
