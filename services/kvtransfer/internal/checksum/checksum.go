// Package checksum computes CRC-32C (Castagnoli), alone or together with a copy, in
// one pass over memory: where bytes are cold, fetching them is what costs.
//
// Only services/kvtransfer may import it. It starts no goroutines.
package checksum

import (
	"hash/crc32"
	"unsafe"
)

// stepBytes is how much is summed before it is copied where the processor has no
// instructions to do both at once: it stays in the nearest cache.
const stepBytes = 8 << 10

// table is hash/crc32's, which finds the processor's instructions by it.
var table = crc32.MakeTable(crc32.Castagnoli)

// Update adds p to a checksum. That of nothing is 0.
func Update(sum uint32, p []byte) uint32 {
	if bulk := bulkOf(len(p)); bulk > 0 {
		sum = ^fold(unsafe.SliceData(p), bulk, ^sum)
		p = p[bulk:]
	}
	return crc32.Update(sum, table, p)
}

// Copy copies src to the beginning of dst, which has room for it, and adds it to a
// checksum. The two do not overlap.
func Copy(dst, src []byte, sum uint32) uint32 {
	dst = dst[:len(src)]
	if bulk := bulkOf(len(src)); bulk > 0 {
		sum = ^foldCopy(unsafe.SliceData(dst), unsafe.SliceData(src), bulk, ^sum)
		dst, src = dst[bulk:], src[bulk:]
	}
	return reference(dst, src, sum)
}

// Stream is Copy for a dst that will not be read soon: it passes the caches by,
// which then keep what they hold, and memory that is written whole is not read
// first.
func Stream(dst, src []byte, sum uint32) uint32 {
	dst = dst[:len(src)]
	if !canFold || len(src) < foldLeast+foldUnit {
		return reference(dst, src, sum)
	}
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst))) % foldUnit)
	sum = reference(dst[:head], src[:head], sum)
	dst, src = dst[head:], src[head:]
	bulk := bulkOf(len(src))
	sum = ^foldStream(unsafe.SliceData(dst), unsafe.SliceData(src), bulk, ^sum)
	return reference(dst[bulk:], src[bulk:], sum)
}

// bulkOf is how many of n bytes are folded.
func bulkOf(n int) int {
	if !canFold || n < foldLeast {
		return 0
	}
	return n - n%foldUnit
}

// reference copies and sums by the standard library.
func reference(dst, src []byte, sum uint32) uint32 {
	for len(src) > 0 {
		n := min(len(src), stepBytes)
		sum = crc32.Update(sum, table, src[:n])
		copy(dst, src[:n])
		dst, src = dst[n:], src[n:]
	}
	return sum
}
