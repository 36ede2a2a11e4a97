package checksum

import "golang.org/x/sys/cpu"

// paths are what the processor runs, best first.
func paths() []path {
	var all []path
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL &&
		cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42 {
		all = append(all, avx512)
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasSSE42 && hasVPCLMULQDQ() {
		all = append(all, avx2)
	}
	return append(all, standard)
}

// hasVPCLMULQDQ asks a processor that has AVX2 for this one instruction, which
// golang.org/x/sys/cpu knows beside AVX-512 only. That the system keeps the registers
// is part of HasAVX2.
func hasVPCLMULQDQ() bool

// fold returns the state of a CRC-32C, which is its complement, after n more bytes:
// a multiple of foldUnit, and foldLeast at least.
func (p path) fold(src *byte, n int, state uint32) uint32 {
	if p == avx512 {
		return foldAVX512(src, n, state)
	}
	return foldAVX2(src, n, state)
}

// foldCopy is fold, and copies.
func (p path) foldCopy(dst, src *byte, n int, state uint32) uint32 {
	if p == avx512 {
		return foldCopyAVX512(dst, src, n, state)
	}
	return foldCopyAVX2(dst, src, n, state)
}

// foldStream is foldCopy past the caches. dst is a multiple of foldUnit.
func (p path) foldStream(dst, src *byte, n int, state uint32) uint32 {
	if p == avx512 {
		return foldStreamAVX512(dst, src, n, state)
	}
	return foldStreamAVX2(dst, src, n, state)
}

//go:noescape
func foldAVX512(src *byte, n int, state uint32) uint32

//go:noescape
func foldCopyAVX512(dst, src *byte, n int, state uint32) uint32

//go:noescape
func foldStreamAVX512(dst, src *byte, n int, state uint32) uint32

//go:noescape
func foldAVX2(src *byte, n int, state uint32) uint32

//go:noescape
func foldCopyAVX2(dst, src *byte, n int, state uint32) uint32

//go:noescape
func foldStreamAVX2(dst, src *byte, n int, state uint32) uint32
