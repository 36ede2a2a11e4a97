// Package checksum computes CRC-32C (Castagnoli), alone or fused with a copy in one pass
// over memory, since for cold bytes the memory access is the cost.
//
// Only pkg/kvtransfer may import it. It starts no goroutines.
package checksum

import (
	"hash/crc32"
	"unsafe"
)

// stepBytes is how much is copied before it is summed on processors that cannot do both at
// once. It fits the L1 cache.
const stepBytes = 4 << 10

// Folded lengths are multiples of foldUnit and at least foldLeast, in bytes.
const (
	foldUnit  = 64
	foldLeast = 256
)

// path is an implementation for an instruction set.
type path uint8

const (
	standard path = iota // the standard library
	avx2
	avx512
)

var (
	// table makes hash/crc32 use the processor's instructions.
	table = crc32.MakeTable(crc32.Castagnoli)

	best = paths()[0]
)

// Update adds p to a checksum. The checksum of no bytes is 0.
func Update(sum uint32, p []byte) uint32 { return best.update(sum, p) }

// Copy copies src to the start of dst, which must be long enough and not overlap, and adds
// it to a checksum.
func Copy(dst, src []byte, sum uint32) uint32 { return best.copy(dst, src, sum) }

// Stream is Copy with non-temporal stores, for a dst that is not read soon: it does not
// evict cached data or read memory that it overwrites.
func Stream(dst, src []byte, sum uint32) uint32 { return best.stream(dst, src, sum) }

func (p path) update(sum uint32, text []byte) uint32 {
	if bulk := p.bulkOf(len(text)); bulk > 0 {
		sum = ^p.fold(unsafe.SliceData(text), bulk, ^sum)
		text = text[bulk:]
	}
	return crc32.Update(sum, table, text)
}

func (p path) copy(dst, src []byte, sum uint32) uint32 {
	dst = dst[:len(src)]
	if bulk := p.bulkOf(len(src)); bulk > 0 {
		sum = ^p.foldCopy(unsafe.SliceData(dst), unsafe.SliceData(src), bulk, ^sum)
		dst, src = dst[bulk:], src[bulk:]
	}
	return reference(dst, src, sum)
}

func (p path) stream(dst, src []byte, sum uint32) uint32 {
	dst = dst[:len(src)]
	if p == standard || len(src) < foldLeast+foldUnit {
		return reference(dst, src, sum)
	}
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst))) % foldUnit)
	sum = reference(dst[:head], src[:head], sum)
	dst, src = dst[head:], src[head:]
	bulk := p.bulkOf(len(src))
	sum = ^p.foldStream(unsafe.SliceData(dst), unsafe.SliceData(src), bulk, ^sum)
	return reference(dst[bulk:], src[bulk:], sum)
}

// bulkOf is how many of n bytes are folded; the rest goes through the standard library.
func (p path) bulkOf(n int) int {
	if p == standard || n < foldLeast {
		return 0
	}
	return n - n%foldUnit
}

// reference copies and sums with the standard library. It copies first because that reads
// cold bytes in order; the sum reads at three places in turn, which the prefetcher handles
// less well.
func reference(dst, src []byte, sum uint32) uint32 {
	for len(src) > 0 {
		n := min(len(src), stepBytes)
		copy(dst, src[:n])
		sum = crc32.Update(sum, table, src[:n])
		dst, src = dst[n:], src[n:]
	}
	return sum
}
