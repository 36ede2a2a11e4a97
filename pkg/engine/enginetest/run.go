package enginetest

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// What an engine under test must at least hold.
const (
	MinBlocks      = 32
	MinBatchTokens = 64
	MinSequences   = 4
	MinBlockTokens = 4
	minContext     = 128
)

// NewEngine makes a fresh engine of the same model each time, to be closed with
// the test, with at least MinBlocks blocks, batches of MinBatchTokens and
// MinSequences sequences, and blocks of at least MinBlockTokens. It fails the test if it cannot.
type NewEngine func(t *testing.T) engine.Engine

// Run checks the engine's contract: see engine.Engine, Batch and Pages.
func Run(t *testing.T, newEngine NewEngine) {
	for _, c := range []struct {
		name string
		test func(*testing.T, NewEngine)
	}{
		{"capacity", testCapacity},
		{"layers are announced in order", testLayerDone},
		{"bad batches are refused", testBadBatches},
		{"a refused batch changes nothing", testRefusalIsHarmless},
		{"a cancelled context ends a step", testCancelled},
		{"only who asks gets a token", testDraws},
		{"only who asks gets log probabilities", testLogprobs},
		{"only what is allowed is drawn", testConstraint},
		{"how likely a prompt is", testPromptLogprobs},
		{"nothing ends a text too early", testMinTokens},
		{"drafts under a constraint change no token", testConstrainedDrafts},
		{"chunks give the same tokens", testChunks},
		{"a batch gives the same tokens", testBatch},
		{"drafts give the same tokens", testDrafts},
		{"drafts that are not possible are refused", testBadDrafts},
		{"what is not finite fails alone", testNotFinite},
		{"what is not finite is found", testFindNotFinite},
		{"a step that was started gives the same", testStarting},
		{"pages copied to another engine go on with the same tokens", testTransfer},
		{"pages refuse what does not fit", testPages},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newEngine) })
	}
}

// prompt is n tokens that differ by seed.
func prompt(e engine.Engine, n, seed int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32((i*i*31 + i*7 + seed*101 + 3) % e.Model().VocabSize)
	}
	return tokens
}

// blocksFor is a table of n tokens from block first on.
func blocksFor(e engine.Engine, n, first int) []kvcache.BlockID {
	return kvcache.BlockRange(first, kvcache.BlocksFor(n, e.Capacity().Layout.BlockTokens))
}

func draw(offset int) *engine.Sample {
	return &engine.Sample{Params: sampler.Params{Temperature: 0.9, TopP: 0.95, Seed: 42}, Offset: uint64(offset)}
}

func mustStep(t *testing.T, e engine.Engine, sequences ...engine.Sequence) engine.Output {
	t.Helper()
	out, err := e.Step(t.Context(), engine.Batch{Sequences: sequences})
	if err != nil {
		t.Fatalf("step: %v", err)
	}
	if len(out.Tokens) != len(sequences) {
		t.Fatalf("%d tokens for %d sequences", len(out.Tokens), len(sequences))
	}
	return out
}

// goOn draws n tokens after `last`, whose position is start.
func goOn(t *testing.T, e engine.Engine, last int32, start, n int, blocks []kvcache.BlockID) []int32 {
	t.Helper()
	var tokens []int32
	for i := range n {
		out := mustStep(t, e, engine.Sequence{Tokens: []int32{last}, Start: start + i, Blocks: blocks, Sample: draw(i + 1)})
		last = out.Tokens[0]
		tokens = append(tokens, last)
	}
	return tokens
}

// generate computes p in one step and draws n tokens.
func generate(t *testing.T, e engine.Engine, p []int32, n, firstBlock int) []int32 {
	t.Helper()
	blocks := blocksFor(e, len(p)+n, firstBlock)
	out := mustStep(t, e, engine.Sequence{Tokens: p, Blocks: blocks, Sample: draw(0)})
	return append([]int32{out.Tokens[0]}, goOn(t, e, out.Tokens[0], len(p), n-1, blocks)...)
}

func testCapacity(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	c, m := e.Capacity(), e.Model()
	if c.Blocks < MinBlocks || c.MaxBatchTokens < MinBatchTokens || c.MaxSequences < MinSequences || c.Layout.BlockTokens < MinBlockTokens || m.ContextTokens < minContext {
		t.Fatalf("the engine under test is too small: %+v, context %d", c, m.ContextTokens)
	}
	l := c.Layout
	if l.Layers != m.Layers || l.KVHeads != m.KVHeads || l.HeadSize != m.HeadSize || l.ModelDigest != m.Digest {
		t.Errorf("layout %+v is not the model's", l)
	}
	if l.BlockTokens <= 0 || l.SliceBytes <= 0 || l.ArithmeticClass == "" || l.Order == "" || l.ElementType == "" {
		t.Errorf("layout %+v is incomplete", l)
	}
	if e.Pages().Layout() != l {
		t.Error("Pages and Capacity name different layouts")
	}
}

func testLayerDone(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	var layers, want []int
	ends := 0
	for i := range e.Model().Layers {
		want = append(want, i)
	}
	_, err := e.Step(t.Context(), engine.Batch{
		Sequences: []engine.Sequence{{Tokens: prompt(e, 5, 0), Blocks: blocksFor(e, 5, 0)}},
		LayerDone: func(layer int) { layers = append(layers, layer) },
		LayersDone: func() {
			if ends++; len(layers) != len(want) {
				t.Errorf("all layers are said to be done after %d of %d", len(layers), len(want))
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(layers, want) {
		t.Errorf("layers %v, want %v", layers, want)
	}
	if ends != 1 {
		t.Errorf("all layers were done %d times", ends)
	}
}

// badBatches are batches that no engine may accept.
func badBatches(e engine.Engine) map[string][]engine.Sequence {
	c, size := e.Capacity(), e.Capacity().Layout.BlockTokens
	good := func(first int) engine.Sequence {
		return engine.Sequence{Tokens: prompt(e, 3, 0), Blocks: blocksFor(e, 3, first)}
	}
	with := func(change func(*engine.Sequence)) []engine.Sequence {
		s := good(0)
		change(&s)
		return []engine.Sequence{s}
	}
	many := make([]engine.Sequence, c.MaxSequences+1)
	for i := range many {
		many[i] = engine.Sequence{Tokens: []int32{1}, Blocks: []kvcache.BlockID{kvcache.BlockID(i % c.Blocks)}}
	}
	prefix := good(0)
	prefix.Start, prefix.Blocks = size, []kvcache.BlockID{5, 6}
	bad := map[string][]engine.Sequence{
		"no sequences":        {},
		"too many sequences":  many,
		"no tokens":           with(func(s *engine.Sequence) { s.Tokens = nil }),
		"too many tokens":     with(func(s *engine.Sequence) { s.Tokens = prompt(e, c.MaxBatchTokens+1, 0) }),
		"negative token":      with(func(s *engine.Sequence) { s.Tokens = []int32{1, -1} }),
		"unknown token":       with(func(s *engine.Sequence) { s.Tokens = []int32{int32(e.Model().VocabSize)} }),
		"negative start":      with(func(s *engine.Sequence) { s.Start = -1 }),
		"beyond the context":  with(func(s *engine.Sequence) { s.Start = e.Model().ContextTokens - 2 }),
		"absurd start":        with(func(s *engine.Sequence) { s.Start = math.MaxInt }),
		"table too short":     with(func(s *engine.Sequence) { s.Start = size }),
		"negative block":      with(func(s *engine.Sequence) { s.Blocks = []kvcache.BlockID{-1} }),
		"unknown block":       with(func(s *engine.Sequence) { s.Blocks = []kvcache.BlockID{kvcache.BlockID(c.Blocks)} }),
		"bad temperature":     with(func(s *engine.Sequence) { s.Sample = &engine.Sample{Params: sampler.Params{Temperature: -1}} }),
		"too many logprobs":   with(func(s *engine.Sequence) { s.Sample = asking(0, sampler.MaxTopLogprobs+1) }),
		"negative logprobs":   with(func(s *engine.Sequence) { s.Sample = asking(0, -1) }),
		"one block for two":   {good(0), good(0)},
		"read while written":  {prefix, good(5)},
		"second one is wrong": {good(0), {Tokens: []int32{-7}, Blocks: blocksFor(e, 1, 9)}},
	}
	if size < c.MaxBatchTokens { // else one step does not reach a second block
		bad["one block twice"] = []engine.Sequence{{Tokens: prompt(e, size+1, 0), Blocks: []kvcache.BlockID{3, 3}}}
	}
	return bad
}

func testBadBatches(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	for name, sequences := range badBatches(e) {
		called := false
		_, err := e.Step(t.Context(), engine.Batch{Sequences: sequences, LayerDone: func(int) { called = true }, LayersDone: func() { called = true }})
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		if called {
			t.Errorf("%s: computed before it was refused", name)
		}
	}
}

func testRefusalIsHarmless(t *testing.T, newEngine NewEngine) {
	p := prompt(newEngine(t), 20, 1)
	want := generate(t, newEngine(t), p, 8, 0)
	e := newEngine(t)
	blocks := blocksFor(e, len(p)+8, 0)
	out := mustStep(t, e, engine.Sequence{Tokens: p, Blocks: blocks, Sample: draw(0)})
	for name, sequences := range badBatches(e) {
		if _, err := e.Step(t.Context(), engine.Batch{Sequences: sequences}); err == nil {
			t.Fatalf("%s: accepted", name)
		}
	}
	got := append([]int32{out.Tokens[0]}, goOn(t, e, out.Tokens[0], len(p), 7, blocks)...)
	if !slices.Equal(got, want) {
		t.Errorf("after refused batches %v, without them %v", got, want)
	}
}

func testCancelled(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	p := prompt(e, 10, 2)
	batch := engine.Batch{Sequences: []engine.Sequence{{Tokens: p, Blocks: blocksFor(e, 20, 0), Sample: draw(0)}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Step(ctx, batch); !errors.Is(err, context.Canceled) {
		t.Errorf("a step under a cancelled context gave %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	batch.LayerDone = func(int) { cancel() }
	if _, err := e.Step(ctx, batch); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("a step cancelled half-way gave %v", err)
	}
	got, want := generate(t, e, p, 5, 0), generate(t, newEngine(t), p, 5, 0)
	if !slices.Equal(got, want) {
		t.Errorf("after cancelled steps %v, in a fresh engine %v", got, want)
	}
}
