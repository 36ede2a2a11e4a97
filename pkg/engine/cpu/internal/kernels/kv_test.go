package kernels_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
)

// head is what a slice in int8 has of one token and head.
type head struct {
	codes []int8
	scale float32
}

// headsOf reads a token's keys, one head after the other, and its values: the layout as
// tdm_kernels.h describes it.
func headsOf(s kernels.Shape, slice []byte, token int) []head {
	var heads []head
	elements := s.KVHeads * s.HeadSize * s.BlockTokens
	for h := range 2 * s.KVHeads {
		at := 2*elements + 2*(h*s.BlockTokens+token)
		scale := math.Float32frombits(uint32(slice[at])<<16 | uint32(slice[at+1])<<24)
		codes := make([]int8, s.HeadSize)
		for d := range codes {
			if h < s.KVHeads {
				codes[d] = int8(slice[(h*s.HeadSize+d)*s.BlockTokens+token])
			} else {
				codes[d] = int8(slice[elements+((h-s.KVHeads)*s.BlockTokens+token)*s.HeadSize+d])
			}
		}
		heads = append(heads, head{codes, scale})
	}
	return heads
}

// TestCodes: a head in int8 is as near to what it was as its scale allows, whatever the
// size of its elements, and what is not finite can be told.
func TestCodes(t *testing.T) {
	sets := kernels.Usable()
	for i, set := range sets {
		t.Run(set.Name(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(8, uint64(i)))
			for round := range 120 {
				s := shape(r)
				s.KV = kernels.Int8
				qkv := floats(r, (s.Heads+2*s.KVHeads)*s.HeadSize, 1)
				kv := qkv[s.Heads*s.HeadSize:]
				broken := map[int]bool{}
				for h := range 2 * s.KVHeads {
					size := math.Pow(10, float64(r.IntN(70)-35))
					for d := range s.HeadSize {
						kv[h*s.HeadSize+d] = float32(float64(kv[h*s.HeadSize+d]) * size)
					}
					if round%8 == 0 {
						kv[h*s.HeadSize+r.IntN(s.HeadSize)] = []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}[r.IntN(3)]
						broken[h] = true
					}
				}
				one := make([]float32, s.HeadSize/2)
				for d := range one {
					one[d] = 1
				}
				slice, token := make([]byte, s.SliceBytes()), r.IntN(s.BlockTokens)
				set.ProbeRotate(s, qkv, one, make([]float32, s.HeadSize/2), slice, nil, token)
				same := make([]byte, s.SliceBytes())
				sets[len(sets)-1].ProbeRotate(s, qkv, one, make([]float32, s.HeadSize/2), same, nil, token)
				if !bytes.Equal(slice, same) {
					t.Fatalf("%+v: not what the portable path writes", s)
				}
				for h, got := range headsOf(s, slice, token) {
					x := kv[h*s.HeadSize:][:s.HeadSize]
					if (got.scale != got.scale) != broken[h] {
						t.Fatalf("head %d: scale %g of %g", h, got.scale, x)
					}
					if !broken[h] {
						checkHead(t, x, got)
					}
				}
			}
		})
	}
}

func checkHead(t *testing.T, x []float32, got head) {
	t.Helper()
	var largest float64
	for _, v := range x {
		largest = max(largest, math.Abs(float64(v)))
	}
	scale := float64(got.scale)
	if largest < math.Ldexp(1, -100) {
		largest = 0
	}
	// A bf16 scale is at most 1/128 more than it has to be.
	if scale*127 < largest*(1-1e-6) || scale*127 > largest*(1+1.0/128+1e-6) {
		t.Fatalf("scale %g for a largest of %g", scale, largest)
	}
	for d, code := range got.codes {
		if off := math.Abs(float64(code)*scale - float64(x[d])); largest > 0 && off > scale*(0.5+1e-4) || largest == 0 && code != 0 {
			t.Fatalf("%g became %d times %g", x[d], code, scale)
		}
	}
}
