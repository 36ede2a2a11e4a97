//go:build !asan

package cpu_test

import (
	"fmt"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// TestSteadyStepsAllocateNothing: a step of decodes with room for its tokens leaves
// nothing on Go's heap, however many sequences it has and however they draw.
func TestSteadyStepsAllocateNothing(t *testing.T) {
	w := loadFable(t, 2)
	for _, c := range []struct {
		sequences int
		kv        cpu.KVType
	}{{1, cpu.KVBF16}, {8, cpu.KVBF16}, {40, cpu.KVBF16}, {1, cpu.KVInt8}, {8, cpu.KVInt8}} {
		sequences := c.sequences
		t.Run(fmt.Sprintf("%d-%s", sequences, c.kv), func(t *testing.T) {
			const context = 40
			e := newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 3 * sequences, MaxSequences: sequences})
			batch := engine.Batch{TokenBuffer: make([]int32, sequences)}
			for i := range sequences {
				s := engine.Sequence{Tokens: prompt(context, e.Model().VocabSize), Blocks: table(3*i, 3)}
				step(t, e, s)
				s.Tokens, s.Start, s.Sample = s.Tokens[:1], context, &engine.Sample{}
				if i%2 == 1 {
					s.Sample.Params = sampler.Params{Temperature: 0.8, TopK: 20, TopP: 0.9, Seed: 3, FrequencyPenalty: 0.1}
					s.Sample.History.Generated = prompt(10, e.Model().VocabSize)
				}
				batch.Sequences = append(batch.Sequences, s)
			}
			next := func() {
				out, err := e.Step(t.Context(), batch)
				if err != nil {
					t.Fatal(err)
				}
				if &out.Tokens[0] != &batch.TokenBuffer[0] {
					t.Fatal("the tokens are not in the room that was given")
				}
				for i := range batch.Sequences {
					s := &batch.Sequences[i]
					s.Tokens[0] = out.Tokens[i]
					s.Sample.Offset++
					s.Start++
				}
			}
			if n := testing.AllocsPerRun(2, func() { // the first is not counted
				for range 10 {
					next()
				}
			}); n != 0 {
				t.Errorf("%v allocations in ten steps", n)
			}
		})
	}
}
