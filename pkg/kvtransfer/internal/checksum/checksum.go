// Package checksum computes CRC-32C (Castagnoli), alone or together with a copy, in
// one pass over memory: where bytes are cold, fetching them is what costs.
//
// Only pkg/kvtransfer may import it. It starts no goroutines.
package checksum

import (
	"hash/crc32"
	"unsafe"
)

// stepBytes is how much is copied before it is summed where the processor has no
// instructions to do both at once: it stays in the nearest cache.
const stepBytes = 4 << 10

// foldUnit is what the lengths that are folded are multiples of, and foldLeast the
// least, in bytes.
const (
	foldUnit  = 64
	foldLeast = 256
)

// path is a set of instructions to sum and copy by.
type path uint8

const (
	standard path = iota // the standard library
	avx2
	avx512
)

var (
	// table is hash/crc32's, which finds the processor's instructions by it.
	table = crc32.MakeTable(crc32.Castagnoli)

	best = paths()[0]
)

// Update adds p to a checksum. That of nothing is 0.
func Update(sum uint32, p []byte) uint32 { return best.update(sum, p) }

// Copy copies src to the beginning of dst, which is long enough, and adds it to a
// checksum. The two do not overlap.
func Copy(dst, src []byte, sum uint32) uint32 { return best.copy(dst, src, sum) }

// Stream is Copy for a dst that will not be read soon: it passes the caches by,
// which then keep what they hold, and memory that is written whole is not read
// first.
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

// bulkOf is how many of n bytes are folded.
func (p path) bulkOf(n int) int {
	if p == standard || n < foldLeast {
		return 0
	}
	return n - n%foldUnit
}

// reference copies and sums by the standard library. The copy is first, since it
// fetches cold bytes in order; the sum reads from three places in turn, which the
// processor foresees less well.
func reference(dst, src []byte, sum uint32) uint32 {
	for len(src) > 0 {
		n := min(len(src), stepBytes)
		copy(dst, src[:n])
		sum = crc32.Update(sum, table, src[:n])
		dst, src = dst[n:], src[n:]
	}
	return sum
}
