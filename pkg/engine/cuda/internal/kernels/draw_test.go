package kernels_test

import (
	"math"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// Draws are those of pkg/sampler, and so are their frequencies: weights are rounded
// otherwise, which only a random number within 1e-13 of a border shows. Logits that are
// equal, infinite or no numbers are treated alike too: from some nothing is drawn.
func TestDraws(t *testing.T) {
	b := newBench(t)
	s := sampler.New()
	params := []sampler.Params{
		{Temperature: 1}, {Temperature: 0.8, TopP: 0.7}, {Temperature: 1.3, TopK: 7}, {Temperature: 1, TopK: 40, TopP: 0.9},
		{Temperature: 1.5, MinP: 0.1}, {Temperature: 0.9, TopK: 25, TopP: 0.95, MinP: 0.03}, {},
	}
	const rows = 70
	for _, vocabulary := range []int{1, 37, 1500} {
		ld := padded(vocabulary, kernels.Tile)
		logits, wishes := make([]float32, rows*ld), make([]kernels.Wish, rows)
		count, tokens := put(b, []int32{rows}), put(b, make([]int32, rows))
		for row := range rows {
			fill(b, logits[row*ld:row*ld+vocabulary], row)
			p := params[row%len(params)]
			wishes[row] = kernels.Wish{
				Temperature: p.Temperature, TopK: int32(p.TopK), TopP: p.TopP, MinP: p.MinP, Seed: b.random.Uint64(), Offset: uint64(row),
			}
		}
		args := kernels.DrawArgs{
			Count: count, Wishes: put(b, wishes), Logits: put(b, logits), Tokens: tokens, Ld: int64(ld), Vocabulary: int32(vocabulary),
		}
		b.run(func(p *driver.Program) { b.set.Draw(p, rows, args) })
		for row, token := range get[int32](b, tokens, rows) {
			p := params[row%len(params)]
			p.Seed = wishes[row].Seed
			if want := s.Sample(logits[row*ld:row*ld+vocabulary], p, wishes[row].Offset, sampler.History{}); token != want {
				t.Errorf("row %d of %d tokens: drew %d, pkg/sampler %d, with %+v", row, vocabulary, token, want, p)
			}
		}
	}
}

// fill makes logits of one of several kinds.
func fill(b *bench, logits []float32, row int) {
	for i := range logits {
		x := float32(b.random.NormFloat64() * 2.5)
		switch {
		case row%10 == 7 && b.random.IntN(2*len(logits)) == 0:
			x = float32(math.NaN())
		case row%10 == 6 && row%20 > 10 && i == len(logits)/2:
			x = float32(math.Inf(1))
		case row%10 == 8:
			x = float32(b.random.IntN(4)) // equal ones
		case row%10 == 9 && b.random.IntN(2) == 0:
			x = float32(math.Inf(-1))
		}
		logits[i] = x
	}
}
