package cpu_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// Two models on the threads of one compute what each does alone, also at a time, and the threads
// stay as long as anybody needs them.
func TestWeightsBesideOthers(t *testing.T) {
	first := loadFable(t, 2)
	m, err := model.Open(fableDir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := cpu.Load(t.Context(), m, cpu.Config{Weights: cpu.Int8, Beside: first})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if second.Threads() != first.Threads() {
		t.Errorf("%d threads beside %d", second.Threads(), first.Threads())
	}
	generate := func(e engine.Engine) (tokens []int32) {
		work, start := []int32{0, 11, 12, 13}, 0
		for range 20 {
			out, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{{
				Tokens: work, Start: start, Blocks: table(0, 2), Sample: &engine.Sample{Params: sampler.Params{}},
			}}})
			if err != nil {
				t.Error(err)
				return nil
			}
			start += len(work)
			work = out.Tokens
			tokens = append(tokens, work[0])
		}
		return tokens
	}
	config := cpu.Config{Blocks: 2}
	want := [][]int32{generate(newEngine(t, loadFable(t, 1), config)), generate(newEngine(t, loadFableAs(t, cpu.Int8, 1), config))}
	engines := []engine.Engine{newEngine(t, first, config), newEngine(t, second, config)}
	got := make([][]int32, len(engines))
	var both sync.WaitGroup
	for i, e := range engines {
		both.Go(func() { got[i] = generate(e) })
	}
	both.Wait()
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("model %d: %v, alone %v", i, got[i], want[i])
		}
	}
	for _, e := range engines {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := first.Close(); err == nil || !strings.Contains(err.Error(), "still use") {
		t.Errorf("the threads were ended under the other model: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// Nobody computes between the steps of who holds the turn, who may use any engine of the threads.
func TestHoldTurn(t *testing.T) {
	weights := loadFable(t, 1)
	var engines [3]engine.Engine
	for i := range engines {
		engines[i] = newEngine(t, weights, cpu.Config{Blocks: 1})
	}
	step := func(ctx context.Context, e engine.Engine) {
		if _, err := e.Step(ctx, engine.Batch{Sequences: []engine.Sequence{{Tokens: []int32{0}, Blocks: table(0, 1)}}}); err != nil {
			t.Error(err)
		}
	}
	for range 20 {
		held, release, err := engines[0].(engine.TurnTaker).Hold(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var holding atomic.Bool
		holding.Store(true)
		var other sync.WaitGroup
		other.Go(func() {
			step(t.Context(), engines[2])
			if holding.Load() {
				t.Error("another step came between")
			}
		})
		for range 4 {
			step(held, engines[0])
			step(held, engines[1])
		}
		holding.Store(false)
		release()
		other.Wait()
	}
}
