package checksum

import "golang.org/x/sys/cpu"

// foldUnit is what the lengths of fold and its like are multiples of, and foldLeast
// the least length, in bytes.
const (
	foldUnit  = 64
	foldLeast = 256
)

// canFold says whether the processor has what fold and its like need.
var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL &&
	cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42

// fold returns the state of a CRC-32C, which is its complement, after n more bytes.
//
//go:noescape
func fold(src *byte, n int, state uint32) uint32

// foldCopy is fold, and copies.
//
//go:noescape
func foldCopy(dst, src *byte, n int, state uint32) uint32

// foldStream is foldCopy past the caches. dst is a multiple of foldUnit.
//
//go:noescape
func foldStream(dst, src *byte, n int, state uint32) uint32
