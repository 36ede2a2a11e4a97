package workerdriver_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
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

// putOff counts the draws that an engine puts off.
type putOff struct {
	engine.Engine
	draws *atomic.Int64
}

func (e putOff) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	out, err := e.Engine.Step(ctx, batch)
	for _, token := range out.Tokens {
		if token == sampler.Later {
			e.draws.Add(1)
		}
	}
	return out, err
}

// Outputs whose masks take long share the work of a step: draws are put off, and the tokens are the same
// as of each alone.
func TestMasksShareTheWorkOfAStep(t *testing.T) {
	texts := [][]byte{nil, nil, nil} // 1 and 2 begin and end a text
	for n := 1; n <= 12; n++ {
		for word := range 1 << n {
			text := make([]byte, n)
			for i := range text {
				text[i] = "ab"[word>>i&1]
			}
			texts = append(texts, text)
		}
	}
	vocabulary, err := grammar.NewVocabulary(len(texts), func(id int32) []byte { return texts[id] })
	if err != nil {
		t.Fatal(err)
	}
	const outputs, tokens = 8, 3
	run := func(t *testing.T, atOnce int) (all [][]int32, later int64) {
		form, err := grammar.Compile(t.Context(), &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: "[ab]*a[ab]{25}"}}, vocabulary)
		if err != nil {
			t.Fatal(err)
		}
		model := spec()
		model.VocabSize = len(texts)
		e, err := simulated.New(simulated.Config{Spec: model, Blocks: 40, BlockTokens: 4, MaxBatchTokens: 64, MaxSequences: outputs})
		if err != nil {
			t.Fatal(err)
		}
		var draws atomic.Int64
		m, _ := start(t, putOff{e, &draws}, controlv1.Role_ROLE_DECODE, nil)
		for first := 0; first < outputs; first += atOnce {
			var sequences []*workerdriver.Sequence
			for i := first; i < first+atOnce; i++ {
				sequences = append(sequences, m.Driver().Submit(scheduler.Request{
					ID: m.Driver().Reserve(), Kind: scheduler.Full, Tokens: prompt(8), MaxTokens: tokens, Stop: []int32{2},
					Constraint: form.Constrain([]int32{2}), Sampling: sampler.Params{Temperature: 1, Seed: uint64(i)},
				}))
			}
			for _, s := range sequences {
				var r result
				if r.read(t, s, false); len(r.tokens) != tokens {
					t.Errorf("%d tokens: %+v", len(r.tokens), r.finished)
				}
				all = append(all, r.tokens)
			}
		}
		return all, draws.Load()
	}
	synctest.Test(t, func(t *testing.T) {
		want, _ := run(t, 1)
		got, later := run(t, outputs)
		if !slices.EqualFunc(got, want, slices.Equal[[]int32]) {
			t.Errorf("together %v, alone %v", got, want)
		}
		if later == 0 {
			t.Error("no draw was put off")
		}
	})
}
