package simulated_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

const vocabulary = 300

func config() simulated.Config {
	return simulated.Config{
		Spec: model.Spec{
			Name: "toy", Digest: "d1", VocabSize: vocabulary, HiddenSize: 8, Layers: 4, Heads: 2, KVHeads: 1, HeadSize: 4,
			ContextTokens: 256, BOS: 1, EOS: []int32{2, 7},
		},
		Blocks: 40, BlockTokens: 4, MaxBatchTokens: 64, MaxSequences: 6,
	}
}

func newEngine(t *testing.T, cfg simulated.Config) engine.Engine {
	t.Helper()
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

// sequence is n tokens in blocks from 0 on, drawing greedily.
func sequence(n int) engine.Sequence {
	s := engine.Sequence{Sample: &engine.Sample{}}
	for i := range n {
		s.Tokens = append(s.Tokens, int32((i*37+11)%vocabulary))
		if i%4 == 0 {
			s.Blocks = append(s.Blocks, kvcache.BlockID(i/4))
		}
	}
	return s
}

func step(t *testing.T, e engine.Engine, sequences ...engine.Sequence) engine.Output {
	t.Helper()
	out, err := e.Step(t.Context(), engine.Batch{Sequences: sequences})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestNewRefusesWhatCannotRun(t *testing.T) {
	for _, c := range []struct {
		name, says string
		change     func(*simulated.Config)
	}{
		{"no blocks", "blocks", func(c *simulated.Config) { c.Blocks = 0 }},
		{"no block tokens", "block tokens", func(c *simulated.Config) { c.BlockTokens = -1 }},
		{"no batch", "batch tokens", func(c *simulated.Config) { c.MaxBatchTokens = 0 }},
		{"no sequences", "sequences", func(c *simulated.Config) { c.MaxSequences = 0 }},
		{"no layers", "layers", func(c *simulated.Config) { c.Spec.Layers = 0 }},
		{"no vocabulary", "vocabulary", func(c *simulated.Config) { c.Spec.VocabSize = 1 }},
		{"slice too small for its records", "slice", func(c *simulated.Config) { c.SliceBytes = 31 }},
		{"link that stands still", "a link of 1e-300", func(c *simulated.Config) { c.LinkBytesPerSecond = 1e-300 }},
		{"link of no number", "a link of NaN", func(c *simulated.Config) { c.LinkBytesPerSecond = math.NaN() }},
		{"every token is special", "token", func(c *simulated.Config) { c.Spec.VocabSize, c.Spec.EOS = 3, []int32{0, 2} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config()
			c.change(&cfg)
			if _, err := simulated.New(cfg); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, which should speak of %q", err, c.says)
			}
		})
	}
}

func TestStepTakesTheTimeOfItsModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.StepTime = latency.Model{BaseMs: 10, PerTokenMs: 2, PerContextTokenMs: 0.5}
		e := newEngine(t, cfg)
		later := engine.Sequence{Tokens: []int32{3}, Start: 19, Blocks: []kvcache.BlockID{10, 11, 12, 13, 14}}
		for _, c := range []struct {
			name      string
			sequences []engine.Sequence
		}{
			{"a prompt", []engine.Sequence{sequence(9)}},
			{"a token late in its context", []engine.Sequence{later}},
			{"both", []engine.Sequence{sequence(9), later}},
		} {
			var work latency.StepWork
			for _, q := range c.sequences {
				work.Add(q.Start, len(q.Tokens), false)
			}
			want := cfg.StepTime.Predict(work)
			began := time.Now()
			out := step(t, e, c.sequences...)
			if took := time.Since(began); took != want || out.Compute != want {
				t.Errorf("%s took %v and says %v, want %v", c.name, took, out.Compute, want)
			}
		}
	})
}

func TestLayersAreDoneAtTheirShareOfTheStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.StepTime = latency.Model{BaseMs: 80}
		e := newEngine(t, cfg)
		began := time.Now()
		var at []time.Duration
		s := sequence(5)
		_, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{s}, LayerDone: func(layer int) {
			at = append(at, time.Since(began))
			if slices.Equal(e.Pages().View(layer, s.Blocks[1])[:8], make([]byte, 8)) {
				t.Errorf("layer %d was announced before its KV was in the pages", layer)
			}
			if layer+1 < cfg.Spec.Layers && !slices.Equal(e.Pages().View(layer+1, s.Blocks[1])[:8], make([]byte, 8)) {
				t.Errorf("layer %d was computed before layer %d was announced", layer+1, layer)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		want := []time.Duration{20 * time.Millisecond, 40 * time.Millisecond, 60 * time.Millisecond, 80 * time.Millisecond}
		if !slices.Equal(at, want) {
			t.Errorf("layers were done at %v, want %v", at, want)
		}
	})
}

func TestCancelEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.StepTime = latency.Model{BaseMs: 1e6}
		e := newEngine(t, cfg)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := e.Step(ctx, engine.Batch{Sequences: []engine.Sequence{sequence(5)}})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("ended with %v after %v", err, time.Since(began))
		}
	})
}

func TestWaitIsTheCallers(t *testing.T) {
	cfg := config()
	cfg.StepTime = latency.Model{BaseMs: 8}
	var waited []time.Duration
	broken := errors.New("the device is gone")
	cfg.Wait = func(_ context.Context, d time.Duration) error {
		if waited = append(waited, d); len(waited) == 3 {
			return broken
		}
		return nil
	}
	_, err := newEngine(t, cfg).Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{sequence(1)}, LayerDone: func(int) {}})
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if want := slices.Repeat([]time.Duration{2 * time.Millisecond}, 3); !slices.Equal(waited, want) {
		t.Errorf("waited %v, want %v", waited, want)
	}
}

// TestTokensDependOnEveryBlock: a block that was lost, mixed up or written late
// changes what follows.
func TestTokensDependOnEveryBlock(t *testing.T) {
	const prompt = 23 // the last block is not full
	base := sequence(prompt)
	next := engine.Sequence{Tokens: []int32{5}, Start: prompt, Blocks: base.Blocks, Sample: &engine.Sample{}}
	fresh := func(t *testing.T) engine.Engine {
		e := newEngine(t, config())
		step(t, e, base)
		return e
	}
	want := step(t, fresh(t), next).Tokens[0]
	for layer := range config().Spec.Layers {
		for b := range base.Blocks {
			e := fresh(t)
			last := min((b+1)*4, prompt) - 1
			e.Pages().View(layer, base.Blocks[b])[last%4*8] ^= 1
			if got := step(t, e, next).Tokens[0]; got == want {
				t.Errorf("a changed bit in layer %d of block %d went unnoticed", layer, b)
			}
		}
	}
	e := fresh(t)
	swapped := next
	swapped.Blocks = slices.Clone(next.Blocks)
	swapped.Blocks[0], swapped.Blocks[1] = swapped.Blocks[1], swapped.Blocks[0]
	if got := step(t, e, swapped).Tokens[0]; got == want {
		t.Error("two blocks that changed places went unnoticed")
	}
}

// TestBriefTokensDependOnAllBefore: with one record a block, what is in it depends on all
// that came before, however that was cut into steps.
func TestBriefTokensDependOnAllBefore(t *testing.T) {
	const prompt = 23 // the last block is not full
	cfg := config()
	cfg.Brief = true
	draw := func(change func(*engine.Sequence), parts ...int) int32 {
		e, s := newEngine(t, cfg), sequence(prompt)
		change(&s)
		for _, end := range append(parts, prompt) {
			part := s
			part.Tokens = s.Tokens[part.Start:end]
			if end < prompt {
				part.Sample = nil
				step(t, e, part)
				s.Start = end
				continue
			}
			return step(t, e, part).Tokens[0]
		}
		return 0
	}
	want := draw(func(*engine.Sequence) {})
	for end := 1; end < prompt; end++ {
		if got := draw(func(*engine.Sequence) {}, end); got != want {
			t.Errorf("in two steps, the first of %d tokens, %d was drawn, and %d in one", end, got, want)
		}
	}
	for i := range prompt {
		if draw(func(s *engine.Sequence) { s.Tokens[i]++ }) == want {
			t.Errorf("another token at position %d gives the same token", i)
		}
	}
}

// TestBriefTokensDependOnTheLastBlock, and a transfer moves what is in it.
func TestBriefTokensDependOnTheLastBlock(t *testing.T) {
	cfg := config()
	cfg.Brief = true
	s := sequence(23)
	next := engine.Sequence{Tokens: []int32{5}, Start: 23, Blocks: s.Blocks, Sample: &engine.Sample{}}
	from, to, spoilt := newEngine(t, cfg), newEngine(t, cfg), newEngine(t, cfg)
	step(t, from, s)
	payload := make([]byte, len(s.Blocks)*from.Pages().Layout().SliceBytes)
	for layer := range cfg.Spec.Layers {
		for _, err := range []error{from.Pages().Read(layer, s.Blocks, payload), to.Pages().Write(layer, s.Blocks, payload), spoilt.Pages().Write(layer, s.Blocks, payload)} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	spoilt.Pages().View(cfg.Spec.Layers-1, s.Blocks[5])[0] ^= 1
	want := step(t, from, next).Tokens[0]
	if got := step(t, to, next).Tokens[0]; got != want {
		t.Errorf("%d was drawn after a transfer, and %d before", got, want)
	}
	if got := step(t, spoilt, next).Tokens[0]; got == want {
		t.Error("a changed bit in the last block went unnoticed")
	}
}

func TestSameInputSameToken(t *testing.T) {
	warm := sampler.Params{Temperature: 0.8, TopP: 1, Seed: 7}
	with := func(change func(*engine.Sequence)) engine.Sequence {
		s := sequence(10)
		s.Sample = &engine.Sample{Params: warm, Offset: 3}
		change(&s)
		return s
	}
	one := with(func(*engine.Sequence) {})
	want := step(t, newEngine(t, config()), one).Tokens[0]
	if got := step(t, newEngine(t, config()), one).Tokens[0]; got != want {
		t.Errorf("another engine draws %d, the first drew %d", got, want)
	}
	for name, other := range map[string]engine.Sequence{
		"seed":   with(func(s *engine.Sequence) { s.Sample.Params.Seed = 8 }),
		"offset": with(func(s *engine.Sequence) { s.Sample.Offset = 4 }),
		"token":  with(func(s *engine.Sequence) { s.Tokens[0]++ }),
	} {
		if got := step(t, newEngine(t, config()), other).Tokens[0]; got == want {
			t.Errorf("another %s gives the same token", name)
		}
	}
	greedy := with(func(s *engine.Sequence) { s.Sample = &engine.Sample{} })
	moved := with(func(s *engine.Sequence) { s.Sample = &engine.Sample{Params: sampler.Params{Seed: 99}, Offset: 5} })
	if a, b := step(t, newEngine(t, config()), greedy).Tokens[0], step(t, newEngine(t, config()), moved).Tokens[0]; a != b {
		t.Errorf("greedy draws %d and, with another seed and offset, %d", a, b)
	}
}

// TestNoSpecialTokenIsDrawn uses a vocabulary in which most draws would hit one. Tokens that would end
// a text too early are drawn only if there are no others.
func TestNoSpecialTokenIsDrawn(t *testing.T) {
	cfg := config()
	cfg.Spec.VocabSize, cfg.Spec.BOS, cfg.Spec.EOS = 6, 5, []int32{0, 2, 3}
	e := newEngine(t, cfg)
	for _, c := range []struct{ ends, want []int32 }{
		{nil, []int32{1, 4}},
		{[]int32{2, 4}, []int32{1}},
		{[]int32{1, 4}, []int32{1, 4}},
	} {
		drawn := make(map[int32]bool)
		for seed := range uint64(500) {
			params := sampler.Params{Temperature: 1, Seed: seed, MinTokens: 9, Ends: c.ends}
			s := engine.Sequence{Tokens: []int32{1}, Blocks: []kvcache.BlockID{0}, Sample: &engine.Sample{Params: params}}
			drawn[step(t, e, s).Tokens[0]] = true
		}
		if got := slices.Sorted(maps.Keys(drawn)); !slices.Equal(got, c.want) {
			t.Errorf("with ends %v drew %v, want %v", c.ends, got, c.want)
		}
	}
}

func TestStepErrors(t *testing.T) {
	e := newEngine(t, config())
	logits := sequence(3)
	logits.Logits = engine.LogitsLast
	if _, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{logits}}); err == nil || !strings.Contains(err.Error(), "logits") {
		t.Errorf("asked for logits: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{sequence(3)}}); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("after Close: %v", err)
	}
}

func TestDigestIsOfTheShape(t *testing.T) {
	spec := config().Spec
	named := spec
	named.Name, named.Digest = "other", "d2"
	wider := spec
	wider.HiddenSize++
	if simulated.Digest(spec) != simulated.Digest(named) {
		t.Error("the name changes the digest")
	}
	if simulated.Digest(spec) == simulated.Digest(wider) {
		t.Error("two shapes have one digest")
	}
}

func TestSliceBytesAreWhatATransferMoves(t *testing.T) {
	cfg := config()
	cfg.SliceBytes = 1000
	e := newEngine(t, cfg)
	if got := e.Pages().Layout().SliceBytes; got != 1000 {
		t.Errorf("slices of %d bytes", got)
	}
	if got := len(e.Pages().View(3, 39)); got != 1000 {
		t.Errorf("a view of %d bytes", got)
	}
	for _, outside := range []struct {
		layer int
		block kvcache.BlockID
	}{{-1, 0}, {4, 0}, {0, -1}, {0, 40}} {
		if e.Pages().View(outside.layer, outside.block) != nil {
			t.Errorf("%s has a view", fmt.Sprint(outside))
		}
	}
}
