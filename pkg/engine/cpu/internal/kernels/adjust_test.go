package kernels_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

func TestAdjust(t *testing.T) {
	against(t, func(t *testing.T, fast, portable kernels.Set, r *rand.Rand) {
		for round := range 200 {
			s := shape(r)
			s.NormEps = 1e-6
			normed, all := (s.Heads+s.KVHeads)*s.HeadSize, (s.Heads+2*s.KVHeads)*s.HeadSize
			scale := math.Pow(10, float64(r.IntN(30)-20))
			before := floats(r, all, scale)
			var bias, qNorm, kNorm []float32
			if round%3 != 0 {
				bias = floats(r, all, scale)
			}
			if round%3 != 1 {
				qNorm, kNorm = floats(r, s.HeadSize, 1), floats(r, s.HeadSize, 1)
			}
			got, want := slices.Clone(before), slices.Clone(before)
			fast.ProbeAdjust(s, got, bias, qNorm, kNorm)
			portable.ProbeAdjust(s, want, bias, qNorm, kNorm)
			same32(t, "queries, keys and values", got, want)
			for i := range want { // what is meant, in float64
				head := i / s.HeadSize * s.HeadSize
				plain := func(i int) float64 {
					if bias == nil {
						return float64(before[i])
					}
					return float64(before[i]) + float64(bias[i])
				}
				x := plain(i)
				if qNorm != nil && i < normed {
					squares := 0.0
					for j := head; j < head+s.HeadSize; j++ {
						squares += plain(j) * plain(j)
					}
					weight := qNorm
					if i >= s.Heads*s.HeadSize {
						weight = kNorm
					}
					x *= float64(weight[i-head]) / math.Sqrt(squares/float64(s.HeadSize)+float64(s.NormEps))
				}
				if math.Abs(float64(want[i])-x) > 1e-5*math.Abs(x)+1e-6*scale {
					t.Fatalf("%+v: element %d is %g, want %g", s, i, want[i], x)
				}
			}
		}
	})
}

// TestWindows: a window that reaches the sequence's start changes nothing, one of
// a single token gives that token's values, and what a query sees does not depend
// on the queries beside it.
func TestWindows(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for _, set := range kernels.Usable() {
		for range 4 {
			s := shape(r)
			const start, tokens = 250, 12 // over a split's end
			n := (start + tokens + s.BlockTokens - 1) / s.BlockTokens
			pages, blocks := make([]byte, n*s.SliceBytes()), make([]kvcache.BlockID, n)
			for i := range blocks {
				blocks[i] = kvcache.BlockID(i)
			}
			one, zero := make([]float32, s.HeadSize/2), make([]float32, s.HeadSize/2)
			for i := range one {
				one[i] = 1
			}
			values := make([][]float32, start+tokens)
			for position := range values {
				qkv := floats(r, (s.Heads+2*s.KVHeads)*s.HeadSize, 1)
				values[position] = qkv[(s.Heads+s.KVHeads)*s.HeadSize:]
				at := position / s.BlockTokens * s.SliceBytes()
				set.ProbeRotate(s, qkv, one, zero, pages[at:at+s.SliceBytes()], nil, position%s.BlockTokens)
			}
			width := s.Heads * s.HeadSize
			q := fill(r, tokens*width, ordinary)
			attend := func(first, count, window int) []uint16 {
				return set.ProbeAttention(s, q[first*width:(first+count)*width], pages, blocks, start+first, window, 0.25)
			}
			same16(t, "a window over everything", attend(0, tokens, start+tokens), attend(0, tokens, 0))
			for _, window := range []int{1, 2, 7, 250, 255, 257, 260} {
				all := attend(0, tokens, window)
				for i := range tokens {
					same16(t, "alone", attend(i, 1, window), all[i*width:(i+1)*width])
				}
			}
			for i, x := range attend(0, tokens, 1) {
				head, d := i%width/s.HeadSize/(s.Heads/s.KVHeads), i%s.HeadSize
				want := values[start+i/width][head*s.HeadSize+d]
				if got := math.Float32frombits(uint32(x) << 16); math.Abs(float64(got-want)) > math.Abs(float64(want))/256 {
					t.Fatalf("%s: a query that sees itself alone gives %g, its value is %g", set.Name(), got, want)
				}
			}
		}
	}
}
