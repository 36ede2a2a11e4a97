package simulated_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// generated is what a worker's scheduler has an engine generate.
type generated struct {
	outputs        [][]int32
	judged, right  int // guesses: of those before which none was wrong
	guessed, steps int
	took           time.Duration
}

func generate(t *testing.T, e engine.Engine, maxDrafts, sequences, tokens int) (g generated) {
	t.Helper()
	capacity := e.Capacity()
	layout := capacity.Layout
	s, err := scheduler.New(scheduler.Config{
		Pool:        kvcache.NewPool(capacity.Blocks, layout.BlockTokens, layout.ModelDigest, layout.ArithmeticClass),
		BlockTokens: layout.BlockTokens, ContextTokens: e.Model().ContextTokens, MaxBatchTokens: capacity.MaxBatchTokens,
		MaxSequences: capacity.MaxSequences, ChunkTokens: 4 * layout.BlockTokens, MaxWaiting: sequences, MaxDrafts: maxDrafts,
	})
	if err != nil {
		t.Fatal(err)
	}
	g.outputs = make([][]int32, sequences)
	var now time.Time
	var step *scheduler.RunStep
	take := func(actions []scheduler.Action) {
		for _, action := range actions {
			switch a := action.(type) {
			case *scheduler.Sampled:
				g.outputs[a.ID] = append(g.outputs[a.ID], a.Token)
			case *scheduler.RunStep:
				step = a
			case scheduler.Finished:
				if a.Reason != scheduler.Length {
					t.Fatalf("sequence %d ended with %v: %v", a.ID, a.Reason, a.Err)
				}
			}
		}
	}
	for i := range sequences {
		var prompt []int32
		for j := range 21 + i {
			prompt = append(prompt, int32((j*37+i*13+11)%vocabulary))
		}
		take(s.Handle(now, scheduler.Submit{Request: scheduler.Request{
			ID: scheduler.SequenceID(i), Tokens: prompt, MaxTokens: tokens, Sampling: sampler.Params{Temperature: float32(i % 2), Seed: uint64(i)},
		}}))
	}
	for step != nil {
		batch := step.Batch
		step = nil
		out, err := e.Step(t.Context(), batch)
		if err != nil {
			t.Fatal(err)
		}
		for i := range batch.Sequences {
			if sample := batch.Sequences[i].Sample; sample != nil && sample.Drafts > 0 {
				g.guessed += sample.Drafts
				g.right += int(out.Accepted[i])
				g.judged += min(int(out.Accepted[i])+1, sample.Drafts)
			}
		}
		g.steps++
		g.took += out.Compute
		now = now.Add(out.Compute)
		take(s.Handle(now, scheduler.StepDone{Tokens: out.Tokens, Accepted: out.Accepted, Compute: out.Compute}))
	}
	return g
}

func repeating(acceptance float64, brief bool, perTokenMs float64) simulated.Config {
	cfg := config()
	cfg.Spec.ContextTokens, cfg.Blocks, cfg.MaxBatchTokens = 4096, 8000, 128
	cfg.Acceptance, cfg.Brief = acceptance, brief
	cfg.StepTime = latency.Model{BaseMs: 10, PerTokenMs: perTokenMs}
	cfg.Wait = func(context.Context, time.Duration) error { return nil }
	return cfg
}

// TestAcceptance: as many guesses of the real lookup are right as was asked for, and the tokens are
// those of a worker that guesses none.
func TestAcceptance(t *testing.T) {
	for _, acceptance := range []float64{0.05, 0.3, 0.7, 0.9, 1} {
		for _, brief := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v brief=%v", acceptance, brief), func(t *testing.T) {
				cfg := repeating(acceptance, brief, 0.01)
				plain := generate(t, newEngine(t, cfg), 0, 4, 1500)
				guessing := generate(t, newEngine(t, cfg), 8, 4, 1500)
				if !slices.EqualFunc(plain.outputs, guessing.outputs, slices.Equal[[]int32]) {
					t.Error("guesses changed tokens")
				}
				got := float64(guessing.right) / float64(guessing.judged)
				// Three standard deviations of as many draws, and what a text has to show before it repeats.
				if most := 3*math.Sqrt(acceptance*(1-acceptance)/float64(guessing.judged)) + 0.02; math.Abs(got-acceptance) > most {
					t.Errorf("%d of %d guesses were right: %.3f, want %v within %.3f", guessing.right, guessing.judged, got, acceptance, most)
				}
				t.Logf("%d of %d guesses were right: %.3f; %d guesses in %d steps", guessing.right, guessing.judged, got, guessing.guessed, guessing.steps)
			})
		}
	}
}

// TestAcceptanceOfAll: of one sequence whose every guess is right, a step has as many tokens as were
// guessed, and one.
func TestAcceptanceOfAll(t *testing.T) {
	const tokens, drafts = 2000, 7
	g := generate(t, newEngine(t, repeating(1, true, 0.01)), drafts, 1, tokens)
	// Steps before the text repeats and the worker has learned what steps take come on top.
	if least, most := tokens/(drafts+1), tokens/(drafts+1)+100; g.steps < least || g.steps > most {
		t.Errorf("%d steps for %d tokens, want %d to %d", g.steps, tokens, least, most)
	}
}

// TestHardlyAnyAcceptance: where nearly all guesses are wrong and a token costs, the scheduler makes
// so few that steps lose little. Where tokens cost nothing, wrong ones cost nothing.
func TestHardlyAnyAcceptance(t *testing.T) {
	for _, perTokenMs := range []float64{0, 0.1, 1, 10} {
		cfg := repeating(0.02, true, perTokenMs)
		plain := generate(t, newEngine(t, cfg), 0, 4, 1500)
		guessing := generate(t, newEngine(t, cfg), 8, 4, 1500)
		if lost := guessing.took.Seconds()/plain.took.Seconds() - 1; lost > 0.03 {
			t.Errorf("%v ms a token: %d wrong guesses cost %.1f%%", perTokenMs, guessing.guessed-guessing.right, 100*lost)
		}
	}
}

// TestRepeatingConforms: tokens are a function of the text alone.
func TestRepeatingConforms(t *testing.T) {
	enginetest.Run(t, func(t *testing.T) engine.Engine {
		cfg := config()
		cfg.Blocks, cfg.Acceptance = 400/cfg.BlockTokens+32, 0.6
		return newEngine(t, cfg)
	})
}

// TestAcceptanceIsRefused where it cannot be.
func TestAcceptanceIsRefused(t *testing.T) {
	for _, c := range []struct {
		acceptance float64
		vocabulary int
		says       string
	}{
		{math.NaN(), 300, "neither 0 nor between"}, {-1, 300, "neither 0 nor between"}, {0.001, 300, "neither 0 nor between"}, {1.1, 300, "neither 0 nor between"},
		{0.5, 10, "needs 8 tokens"}, {0.01, 90, "needs 100 tokens"},
		{0.5, 300, ""}, {0.01, 300, ""}, {0, 10, ""},
	} {
		cfg := config()
		cfg.Acceptance, cfg.Spec.VocabSize = c.acceptance, c.vocabulary
		e, err := simulated.New(cfg)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: error %v", c, err)
		}
		if err == nil {
			_ = e.Close()
		}
	}
}

// TestUnknownCostOfDrafts: an engine whose profile does not say what drafts cost verifies none.
func TestUnknownCostOfDrafts(t *testing.T) {
	for _, known := range []bool{false, true} {
		cfg := config()
		cfg.Profile = (latency.Model{BaseMs: 1}).Profile()
		if !known {
			cfg.Profile.Verify = nil
		}
		if most := newEngine(t, cfg).Capacity().MaxDrafts; (most > 0) != known {
			t.Errorf("known %v: %d drafts", known, most)
		}
	}
}
