package profile_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/profile"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

func truth() *latency.Profile {
	return &latency.Profile{
		Version: latency.ProfileVersion,
		Prefill: []latency.Regime{{Terms: latency.Terms{BaseMs: 10, PerTokenMs: 0.5, PerSquareMs: 1e-4, PerSampleMs: 2}}},
		Decode: []latency.Regime{
			{UpTo: 8, Terms: latency.Terms{BaseMs: 10, PerTokenMs: 0.1, PerContextTokenMs: 2e-3}},
			{Terms: latency.Terms{BaseMs: 4, PerTokenMs: 1, PerContextTokenMs: 2e-3}},
		},
		Verify: []latency.Regime{
			{UpTo: 40, Terms: latency.Terms{BaseMs: 11, PerTokenMs: 0.2, PerSquareMs: 1e-4, PerContextTokenMs: 1e-3}},
			{Terms: latency.Terms{BaseMs: 3, PerTokenMs: 0.4, PerSquareMs: 1e-4, PerContextTokenMs: 1e-3}},
		},
	}
}

func newEngine(t *testing.T, change func(*simulated.Config)) engine.Engine {
	t.Helper()
	cfg := simulated.Config{
		Spec: model.Spec{
			Name: "toy", Digest: "d1", VocabSize: 300, HiddenSize: 8, Layers: 4, Heads: 2, KVHeads: 1, HeadSize: 4, FFNSize: 16,
			ContextTokens: 2048, BOS: 1, EOS: []int32{2},
		},
		Blocks: 2100, BlockTokens: 32, MaxBatchTokens: 512, MaxSequences: 32, Profile: truth(),
	}
	change(&cfg)
	e, err := simulated.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func predict(p *latency.Profile, start, tokens, sequences int) float64 {
	var w latency.StepWork
	for range sequences {
		w.Add(start, tokens, true)
	}
	return p.Predict(w).Seconds()
}

// TestMeasureFindsTheProfile: what a simulated engine obeys is found again, and
// that it jitters too.
func TestMeasureFindsTheProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, func(c *simulated.Config) { c.Trouble = simulated.Trouble{Seed: 1, Jitter: 0.05} })
		began := time.Now()
		result, err := profile.Measure(t.Context(), e, profile.Options{Duration: 5 * time.Minute, Layers: true})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 7*time.Minute {
			t.Errorf("it took %v of 5 minutes", took)
		}
		got := result.Profile
		for _, c := range []struct{ start, tokens, sequences int }{
			{0, 100, 1}, {0, 500, 1}, {1000, 48, 1}, {100, 1, 1}, {1000, 1, 5}, {700, 1, 20}, {40, 1, 32},
		} {
			want := predict(truth(), c.start, c.tokens, c.sequences)
			if is := predict(got, c.start, c.tokens, c.sequences); math.Abs(is/want-1) > 0.03 {
				t.Errorf("%+v takes %.4f s by the profile, %.4f s in truth", c, is, want)
			}
		}
		for _, c := range []struct{ start, drafts, sequences int }{{128, 1, 1}, {600, 6, 1}, {1000, 15, 4}, {900, 3, 16}, {200, 12, 16}} {
			var w latency.StepWork
			for range c.sequences {
				w.AddDrafts(c.start, c.drafts)
			}
			if is := got.Predict(w).Seconds() / truth().Predict(w).Seconds(); math.Abs(is-1) > 0.05 {
				t.Errorf("%+v takes %.3f of the truth by the profile", c, is)
			}
		}
		if math.Abs(got.Jitter-0.05) > 0.01 {
			t.Errorf("jitter %v, want 0.05", got.Jitter)
		}
		for kind, e := range got.Errors {
			if e.Points == 0 || e.Max > 0.06 {
				t.Errorf("%s: errors %+v", kind, e)
			}
		}
		for _, kind := range []string{profile.Prefill, profile.Decode} {
			l := got.Layers[kind]
			if len(l.LayersMs) != 4 || l.HeadMs != 0 {
				t.Errorf("%s: layers %+v", kind, l)
			}
		}
		if result.FLOPsPerSecond <= 0 || result.ReadBytesPerSecond <= 0 || result.LeftOut != 0 {
			t.Errorf("reach %v and %v, %d left out", result.FLOPsPerSecond, result.ReadBytesPerSecond, result.LeftOut)
		}
	})
}

// TestUnknownDrafts: where the engine verifies no drafts, the profile says nothing of them.
func TestUnknownDrafts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, func(c *simulated.Config) { c.Profile.Verify = nil })
		result, err := profile.Measure(t.Context(), e, profile.Options{Duration: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if _, is := result.Profile.Errors[profile.Verify]; is || result.Profile.Verify != nil {
			t.Errorf("%+v", result.Profile)
		}
	})
}

// TestBetween: the caller looks three times, spread over the measurement, and can
// end it.
func TestBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		o := profile.Options{Duration: 4 * time.Minute, Between: func() error {
			at = append(at, time.Since(began))
			return nil
		}}
		if _, err := profile.Measure(t.Context(), newEngine(t, func(*simulated.Config) {}), o); err != nil {
			t.Fatal(err)
		}
		if len(at) != 3 {
			t.Fatalf("looked at %v", at)
		}
		for i, d := range at {
			if due := time.Duration(i+1) * time.Minute; d < due || d > due+10*time.Second {
				t.Errorf("looked at %v, which should be soon after each minute", at)
			}
		}
		enough := errors.New("enough")
		o.Between = func() error { return enough }
		if _, err := profile.Measure(t.Context(), newEngine(t, func(*simulated.Config) {}), o); !errors.Is(err, enough) {
			t.Errorf("error %v", err)
		}
	})
}

// TestBetweenOfQuickSteps: the caller looks three times also where all steps are done early.
func TestBetweenOfQuickSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looked, enough := 0, errors.New("enough")
		o := profile.Options{Duration: 24 * time.Hour, MaxContext: 64, MaxChunk: 64, Between: func() error {
			looked++
			return nil
		}}
		if _, err := profile.Measure(t.Context(), newEngine(t, func(*simulated.Config) {}), o); err != nil || looked != 3 {
			t.Errorf("looked %d times, %v", looked, err)
		}
		o.Between = func() error { return enough }
		if _, err := profile.Measure(t.Context(), newEngine(t, func(*simulated.Config) {}), o); !errors.Is(err, enough) {
			t.Errorf("error %v", err)
		}
	})
}

// TestLimits: a machine is compared with itself.
func TestLimits(t *testing.T) {
	limits := func(flops, read float64, valid bool) latency.Limits {
		return latency.Limits{FLOPsPerSecond: flops, ReadBytesPerSecond: read, Valid: valid}
	}
	for _, c := range []struct {
		name     string
		measured []latency.Limits
		want     latency.Limits
	}{
		{"none", nil, limits(0, 0, false)},
		{"one, of a slow machine", []latency.Limits{limits(1e9, 1e9, true)}, limits(1e9, 1e9, true)},
		{"they agree", []latency.Limits{limits(236e9, 31e9, true), limits(220e9, 34e9, true)}, limits(236e9, 34e9, true)},
		{"slower afterwards", []latency.Limits{limits(236e9, 34e9, true), limits(230e9, 34e9, true), limits(180e9, 34e9, true)}, limits(236e9, 34e9, false)},
		{"memory was slower before", []latency.Limits{limits(236e9, 20e9, true), limits(236e9, 34e9, true)}, limits(236e9, 34e9, false)},
		{"disturbed meanwhile", []latency.Limits{limits(236e9, 34e9, true), limits(236e9, 34e9, false), limits(236e9, 34e9, true)}, limits(236e9, 34e9, false)},
	} {
		if got := profile.Limits(c.measured...); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestMeasureKeepsItsTime: a slow engine leaves out the longest steps.
func TestMeasureKeepsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, func(c *simulated.Config) { c.Trouble.Slow = 20 })
		began := time.Now()
		result, err := profile.Measure(t.Context(), e, profile.Options{Duration: 2 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 3*time.Minute || result.LeftOut == 0 {
			t.Errorf("it took %v of 2 minutes, %d left out", took, result.LeftOut)
		}
	})
}

func TestMeasureFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := profile.Measure(ctx, newEngine(t, func(*simulated.Config) {}), profile.Options{Duration: time.Minute}); err == nil {
			t.Error("a cancelled measurement gave a result")
		}
		if _, err := profile.Measure(t.Context(), newEngine(t, func(c *simulated.Config) { c.Trouble.FailProbability = 1 }), profile.Options{Duration: time.Minute}); err == nil {
			t.Error("an engine that fails gave a result")
		}
	})
}
