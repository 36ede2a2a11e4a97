package cpu_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

func TestConfigErrors(t *testing.T) {
	w := loadFable(t, 2)
	for _, c := range []struct {
		name   string
		config cpu.Config
		want   string
	}{
		{"no memory", cpu.Config{}, "set the number of blocks"},
		{"negative blocks", cpu.Config{Blocks: -1}, "negative"},
		{"too little memory", cpu.Config{KVBytes: 100}, "do not hold one block"},
		{"absurd blocks", cpu.Config{Blocks: math.MaxInt}, "too many"},
		{"odd block size", cpu.Config{Blocks: 4, BlockTokens: 24}, "blocks of 24 tokens"},
		{"negative block size", cpu.Config{Blocks: 4, BlockTokens: -16}, "blocks of -16 tokens"},
		{"more threads than loaded", cpu.Config{Blocks: 4, Threads: 3}, "use the 2 that"},
		{"negative batch", cpu.Config{Blocks: 4, MaxBatchTokens: -1}, "batches of -1"},
		{"more sequences than tokens", cpu.Config{Blocks: 4, MaxBatchTokens: 2, MaxSequences: 3}, "3 sequences"},
		{"unknown type of KV", cpu.Config{Blocks: 4, KV: "fp8"}, "use bf16 or int8"},
		{"unknown instruction set", cpu.Config{Blocks: 4, ISA: "mmx"}, "portable"},
	} {
		e, err := w.NewEngine(c.config)
		if err == nil {
			t.Errorf("%s: accepted", c.name)
			_ = e.Close()
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q does not say %q", c.name, err, c.want)
		}
	}
	page := int64(w.Spec().Layers * w.Spec().KVHeads * w.Spec().HeadSize * 32 * 2 * 2)
	if got := newEngine(t, w, cpu.Config{KVBytes: 10*page + 1}).Capacity().Blocks; got != 10 {
		t.Errorf("%d blocks in the memory of 10", got)
	}
	page = page/2 + int64(w.Spec().Layers*w.Spec().KVHeads*32*2*2) // a byte an element, two a token's head
	if got := newEngine(t, w, cpu.Config{KVBytes: 10*page + 1, KV: cpu.KVInt8}).Capacity().Blocks; got != 10 {
		t.Errorf("%d blocks in int8 in the memory of 10", got)
	}
}

func TestLoadErrors(t *testing.T) {
	m, err := model.Open(fableDir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	for _, c := range []struct {
		threads int
		isa     string
	}{{-1, ""}, {1 << 20, ""}, {1, "mmx"}} {
		if w, err := cpu.Load(t.Context(), m, cpu.Config{Threads: c.threads, ISA: c.isa}); err == nil {
			t.Errorf("%d threads, instruction set %q: accepted", c.threads, c.isa)
			_ = w.Close()
		}
	}
}

func TestLoadProgress(t *testing.T) {
	m, err := model.Open(fableDir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	var last, total int64
	w, err := cpu.Load(t.Context(), m, cpu.Config{Threads: 1, Progress: func(done, all int64) {
		if done <= last {
			t.Errorf("progress went from %d to %d", last, done)
		}
		last, total = done, all
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	if want := 2 * m.Spec().Parameters(); last != want || total != want {
		t.Errorf("progress ended at %d of %d, the weights are %d bytes", last, total, want)
	}
}

func TestClose(t *testing.T) {
	w := loadFable(t, 2)
	e := newEngine(t, w, cpu.Config{Blocks: 4})
	if err := w.Close(); err == nil {
		t.Fatal("weights closed under an engine")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{{Tokens: []int32{1}, Blocks: table(0, 1)}}}); err == nil {
		t.Error("a closed engine computed")
	}
	if e.Pages().View(0, 0) != nil {
		t.Error("a closed engine showed a page")
	}
	if err := e.Pages().Read(0, table(0, 1), make([]byte, e.Pages().Layout().SliceBytes)); err == nil {
		t.Error("a closed engine read a page")
	}
	if err := w.Close(); err != nil {
		t.Errorf("close weights: %v", err)
	}
	if _, err := w.NewEngine(cpu.Config{Blocks: 4}); err == nil {
		t.Error("closed weights made an engine")
	}
}

// TestFloatingPointMode: the compute threads flush denormals, Go's must not.
func TestFloatingPointMode(t *testing.T) {
	e := newEngine(t, loadFable(t, 2), cpu.Config{Blocks: 4})
	half := float32(0.5)
	check := func(when string) {
		t.Helper()
		if least := float32(math.SmallestNonzeroFloat32) * 4; least*half == 0 {
			t.Errorf("%s: denormals are flushed", when)
		}
	}
	_, err := e.Step(t.Context(), engine.Batch{
		Sequences: []engine.Sequence{{Tokens: prompt(20, 4096), Blocks: table(0, 1), Sample: &engine.Sample{}}},
		LayerDone: func(int) { check("between layers") },
	})
	if err != nil {
		t.Fatal(err)
	}
	check("after a step")
}

// cancels is a constraint that allows all, and ends a context when it is asked.
type cancels struct{ cancel context.CancelFunc }

func (c cancels) Allowed([]int32) []uint64 {
	c.cancel()
	return []uint64{math.MaxUint64}
}

// TestCancelledAmongLogits: a step ends soon after its context does, also where that is while it
// computes the logits of a long prompt.
func TestCancelledAmongLogits(t *testing.T) {
	e := newEngine(t, loadFable(t, 2), cpu.Config{Blocks: 8})
	ctx, cancel := context.WithCancel(t.Context())
	p := prompt(100, 4096)
	batch := engine.Batch{Sequences: []engine.Sequence{
		{Tokens: p[:1], Blocks: table(0, 1), Sample: &engine.Sample{Constraint: cancels{cancel}}},
		{Tokens: p, Blocks: table(1, 4), Prompt: &engine.PromptLogprobs{Next: p[1:]}},
	}}
	if out, err := e.Step(ctx, batch); !errors.Is(err, context.Canceled) {
		t.Errorf("%d log probabilities, error %v", len(out.PromptLogprobs), err)
	}
}

// TestSharedThreads runs engines of one model at once: each gets its own bits.
func TestSharedThreads(t *testing.T) {
	w := loadFable(t, 2)
	tokens := prompt(40, 4096)
	want := logitsOf(t, newEngine(t, w, cpu.Config{Blocks: 2}), tokens, table(0, 2))
	var engines []engine.Engine
	for range 4 {
		engines = append(engines, newEngine(t, w, cpu.Config{Blocks: 2}))
	}
	var all sync.WaitGroup
	for _, e := range engines {
		all.Go(func() {
			for range 5 {
				out, err := e.Step(context.Background(), engine.Batch{Sequences: []engine.Sequence{
					{Tokens: tokens, Blocks: table(0, 2), Logits: engine.LogitsAll}}})
				if err != nil {
					t.Error(err)
					return
				}
				for r := range want {
					for i := range want[r] {
						if out.Logits[0][r][i] != want[r][i] {
							t.Errorf("row %d differs", r)
							return
						}
					}
				}
			}
		})
	}
	all.Wait()
}

// TestWaiting: while one engine computes, another waits its turn, and gives up
// with its context.
func TestWaiting(t *testing.T) {
	w := loadFable(t, 1)
	first, second := newEngine(t, w, cpu.Config{Blocks: 2}), newEngine(t, w, cpu.Config{Blocks: 2})
	batch := engine.Batch{Sequences: []engine.Sequence{{Tokens: []int32{1}, Blocks: table(0, 1)}}}
	synctest.Test(t, func(t *testing.T) {
		hold, holding := make(chan struct{}), make(chan struct{})
		done := make(chan error, 1)
		go func() {
			long := batch
			long.LayerDone = func(layer int) {
				if layer == 0 {
					close(holding)
					<-hold
				}
			}
			_, err := first.Step(context.Background(), long)
			done <- err
		}()
		<-holding
		ctx, cancel := context.WithCancel(context.Background())
		waiting := make(chan error, 2)
		go func() { _, err := second.Step(ctx, batch); waiting <- err }()
		synctest.Wait()
		if len(waiting) != 0 {
			t.Fatal("two engines computed at once")
		}
		cancel()
		if err := <-waiting; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled wait gave %v", err)
		}
		go func() { _, err := second.Step(context.Background(), batch); waiting <- err }()
		synctest.Wait()
		close(hold)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	})
}

// TestCloseWaitsForStep: what a step computes in is not unmapped under it.
func TestCloseWaitsForStep(t *testing.T) {
	w := loadFable(t, 2)
	e := newEngine(t, w, cpu.Config{Blocks: 4})
	synctest.Test(t, func(t *testing.T) {
		inLayer, goOn := make(chan struct{}), make(chan struct{})
		stepped := make(chan error, 1)
		go func() {
			_, err := e.Step(t.Context(), engine.Batch{
				Sequences: []engine.Sequence{{Tokens: []int32{1, 2, 3}, Blocks: table(0, 1)}},
				LayerDone: func(layer int) {
					if layer == 0 {
						close(inLayer)
						<-goOn
					}
				},
			})
			stepped <- err
		}()
		<-inLayer
		closed := make(chan error, 1)
		go func() { closed <- e.Close() }()
		synctest.Wait()
		if len(closed) != 0 {
			t.Fatal("closed under a running step")
		}
		close(goOn)
		if err := <-stepped; err != nil {
			t.Errorf("the step ended with %v", err)
		}
		if err := <-closed; err != nil {
			t.Errorf("close: %v", err)
		}
	})
}
