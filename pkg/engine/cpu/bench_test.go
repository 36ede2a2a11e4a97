package cpu_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

func prompt(n, vocabulary int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32((i*7919 + 11) % vocabulary)
	}
	return tokens
}

func BenchmarkFable(b *testing.B) {
	w := loadFable(b, runtime.GOMAXPROCS(0))
	benchmarkEngine(b, w)
}

func benchmarkEngine(b *testing.B, w *cpu.Weights) {
	e := newEngine(b, w, cpu.Config{Blocks: 256, MaxBatchTokens: 512})
	size := e.Capacity().Layout.BlockTokens
	vocabulary := e.Model().VocabSize
	for _, tokens := range []int{32, 512} {
		b.Run(fmt.Sprintf("prefill/%d", tokens), func(b *testing.B) {
			p := prompt(tokens, vocabulary)
			for b.Loop() {
				step(b, e, engine.Sequence{Tokens: p, Blocks: table(0, tokens/size), Sample: &engine.Sample{}})
			}
			b.ReportMetric(float64(b.N*tokens)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
	for _, sequences := range []int{1, 8} {
		b.Run(fmt.Sprintf("decode/%d", sequences), func(b *testing.B) {
			const context = 256
			batch := make([]engine.Sequence, sequences)
			for i := range batch {
				blocks := table(i*10, 10)
				step(b, e, engine.Sequence{Tokens: prompt(context, vocabulary), Blocks: blocks})
				batch[i] = engine.Sequence{Tokens: []int32{5}, Start: context, Blocks: blocks, Sample: &engine.Sample{}}
			}
			b.ResetTimer()
			for b.Loop() {
				step(b, e, batch...)
			}
			b.ReportMetric(float64(b.N*sequences)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// BenchmarkBench200M runs the preset that published figures are about. It writes
// 400 MB of random weights first.
func BenchmarkBench200M(b *testing.B) {
	shape, err := model.Preset("bench-200m")
	if err != nil {
		b.Fatal(err)
	}
	benchmarkEngine(b, load(b, synthesize(b, shape), runtime.GOMAXPROCS(0)))
}
