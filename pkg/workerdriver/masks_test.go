package workerdriver_test

import (
	"context"
	"testing"
	"testing/synctest"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// anything allows the first tokens of a vocabulary, and says how many there were when its mask
// was asked for in advance.
type anything struct{ prepared chan int }

func (a anything) Allowed([]int32) []uint64  { return []uint64{1<<32 - 1} }
func (a anything) Prepare(generated []int32) { a.prepared <- len(generated) }

// expecting is an engine that computes no step before the masks of its draws are being made.
type expecting struct {
	engine.Engine
	prepared chan int
	seen     chan int
}

func (e expecting) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	for i := range batch.Sequences {
		if s := batch.Sequences[i].Sample; s != nil && s.Constraint != nil {
			if n := <-e.prepared; n != len(s.History.Generated) {
				e.seen <- -1
			}
		}
	}
	e.seen <- 1
	return e.Engine.Step(ctx, batch)
}

// Masks are made while the engine steps: here, no step ends before.
func TestMasksAreMadeBesideTheStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prepared, seen := make(chan int), make(chan int, 100)
		m, _ := start(t, expecting{newEngine(t, latency.Model{}), prepared, seen}, controlv1.Role_ROLE_DECODE, nil)
		const tokens = 5
		s := m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Kind: scheduler.Full, Tokens: prompt(8), MaxTokens: tokens, Constraint: anything{prepared}})
		var r result
		r.read(t, s, false)
		if len(r.tokens) != tokens {
			t.Errorf("%d tokens: %+v", len(r.tokens), r)
		}
		for range len(seen) {
			if <-seen < 0 {
				t.Error("a mask was made of other tokens than those of the draw")
			}
		}
	})
}
