package profile_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/profile"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// likeAGPU is about what an H100 takes for a model of 8 billion parameters: it reads the
// weights in 5 ms, computes 300 TFLOP/s, and reads KV at 2.6 TB/s.
func likeAGPU() *latency.Profile {
	const perSquare, perContext = 1.35e-6, 5e-5
	return &latency.Profile{
		Version: latency.ProfileVersion,
		Prefill: []latency.Regime{
			{UpTo: 96, Terms: latency.Terms{BaseMs: 5.6, PerTokenMs: 1e-3, PerSquareMs: perSquare, PerSampleMs: 0.3}},
			{Terms: latency.Terms{BaseMs: 0.6, PerTokenMs: 0.05, PerSquareMs: perSquare, PerSampleMs: 0.3}},
		},
		Decode: []latency.Regime{
			{UpTo: 64, Terms: latency.Terms{BaseMs: 5.8, PerTokenMs: 0.01, PerContextTokenMs: perContext}},
			{Terms: latency.Terms{BaseMs: 3, PerTokenMs: 0.054, PerContextTokenMs: perContext}},
		},
		Mixed: []latency.Regime{{Terms: latency.Terms{BaseMs: 0.1, PerTokenMs: 0.05, PerContextTokenMs: perContext}}},
	}
}

// TestGPUGridInFortySeconds: the longest steps take a hundred times as long as the shortest.
// All are measured, and short ones often.
func TestGPUGridInFortySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, func(c *simulated.Config) {
			c.Spec.ContextTokens, c.Blocks, c.MaxBatchTokens, c.MaxSequences = 32768, 14000, 8192+256, 256
			c.Profile, c.Trouble = likeAGPU(), simulated.Trouble{Seed: 1, Jitter: 0.02}
		})
		began := time.Now()
		result, err := profile.Measure(t.Context(), e, profile.Options{Grid: profile.GPUGrid(), Even: true, Duration: 40 * time.Second, MaxChunk: 8192})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 40*time.Second || took > 42*time.Second {
			t.Errorf("it took %v of 40 seconds", took)
		}
		longest := 0
		for _, p := range result.Points {
			longest = max(longest, p.ChunkStart+p.Chunk, p.Context+1)
			if p.Repeats < 2 || p.MedianMs < 30 && p.Repeats < 8 {
				t.Errorf("%d repeats of %+v", p.Repeats, p)
			}
		}
		if longest != 32768 || result.LeftOut > 40 {
			t.Errorf("the longest context is %d, %d left out", longest, result.LeftOut)
		}
		for kind, e := range result.Profile.Errors {
			if e.Points < 10 || e.P90 > 0.02 {
				t.Errorf("%s: errors %+v", kind, e)
			}
		}
	})
}

// TestLimitsWithin: a GPU's clock may fall by more than what counts as a disturbance
// elsewhere.
func TestLimitsWithin(t *testing.T) {
	hot := []latency.Limits{{FLOPsPerSecond: 500e12, ReadBytesPerSecond: 3e12, Valid: true}, {FLOPsPerSecond: 400e12, ReadBytesPerSecond: 3e12, Valid: true}}
	if profile.Limits(hot...).Valid || !profile.LimitsWithin(0.3, hot...).Valid || profile.LimitsWithin(0.1, hot...).Valid {
		t.Error("a fall of a fifth is judged wrongly")
	}
}
