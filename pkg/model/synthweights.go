package model

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"strings"
)

// Random weights are drawn by a counter: element i of a tensor follows from the
// seed, the tensor's name and i alone, so any part can be made by any worker.
// Each is a sum of four uniform bytes, near enough to a normal distribution
// (Irwin-Hall, cut at 3.45 standard deviations), looked up in a table: integers
// throughout, so the bytes are the same on every machine.

// sumCount is the number of values of a sum of four bytes; sumMean and
// sumVariance describe it.
const (
	sumCount    = 4*255 + 1
	sumMean     = 4 * 255 / 2.0
	sumVariance = 4 * (256*256 - 1) / 12.0
)

// wordElements is how many elements one 64-bit word of randomness makes, and
// how many bytes of bf16 those are.
const (
	wordElements = 2
	wordBytes    = 2 * wordElements
)

// source makes the elements of one tensor.
type source struct {
	key   uint64
	table [sumCount]uint16
}

// newSource draws around mean with the standard deviation deviation.
func newSource(seed uint64, tensor string, mean, deviation float64) *source {
	name := fnv.New64a()
	_, _ = name.Write([]byte(tensor)) // a hash does not fail
	s := &source{key: mix(seed ^ mix(name.Sum64()))}
	scale := deviation / math.Sqrt(sumVariance)
	for sum := range s.table {
		offset := float64((float64(sum) - sumMean) * scale)
		s.table[sum] = toBF16(float32(mean + offset))
	}
	return s
}

// fill writes the elements whose bytes start at offset, a multiple of wordBytes;
// len(dst) is a multiple of 2.
func (s *source) fill(dst []byte, offset int64) {
	const low8, low16 = 0x00ff00ff00ff00ff, 0x0000ffff0000ffff
	counter := uint64(offset / wordBytes)
	for ; len(dst) > 0; counter++ {
		x := mix(s.key + counter*0x9e3779b97f4a7c15)
		x = x&low8 + x>>8&low8
		x = x&low16 + x>>16&low16
		if len(dst) < wordBytes {
			binary.LittleEndian.PutUint16(dst, s.table[uint32(x)])
			return
		}
		binary.LittleEndian.PutUint32(dst, uint32(s.table[uint32(x)])|uint32(s.table[x>>32])<<16)
		dst = dst[wordBytes:]
	}
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014, variant 13 of
// Stafford): adding the golden ratio to a counter and mixing is that generator.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// toBF16 rounds a finite number to the nearest bf16, ties to even.
func toBF16(f float32) uint16 {
	b := math.Float32bits(f)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// drawn is how a weight is drawn.
type drawn struct{ mean, deviation float64 }

// drawnFrom is how a weight of a model is drawn. Matrices keep the size of what they
// multiply (1/sqrt of their inputs); those that write to the residual stream are
// smaller, so that it does not grow with depth (as GPT-2's initialisation does).
// Biases are large enough to matter.
func drawnFrom(w slot, spec Spec) drawn {
	switch {
	case strings.HasSuffix(w.name, ".bias"):
		return drawn{0, 0.2}
	case len(w.shape) == 1:
		return drawn{1, 0.05}
	}
	deviation := 1 / math.Sqrt(float64(w.shape[1]))
	if strings.HasSuffix(w.name, ".o_proj.weight") || strings.HasSuffix(w.name, ".down_proj.weight") {
		deviation /= math.Sqrt(2 * float64(spec.Layers))
	}
	return drawn{0, deviation}
}
