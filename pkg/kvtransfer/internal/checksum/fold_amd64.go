package checksum

import "golang.org/x/sys/cpu"

// paths returns what the processor supports, best first.
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

// hasVPCLMULQDQ asks CPUID for VPCLMULQDQ, which golang.org/x/sys/cpu reports only together
// with AVX-512. The processor must have AVX2; HasAVX2 also covers the system's support of
// the registers.
func hasVPCLMULQDQ() bool

// fold returns the CRC-32C state (the complement of the checksum) after n more bytes. n is
// a multiple of foldUnit and at least foldLeast.
func (p path) fold(src *byte, n int, state uint32) uint32 {
	if p == avx512 {
		return foldAVX512(src, n, state)
	}
	return foldAVX2(src, n, state)
}

// foldCopy is fold with a copy.
func (p path) foldCopy(dst, src *byte, n int, state uint32) uint32 {
	if p == avx512 {
		return foldCopyAVX512(dst, src, n, state)
	}
	return foldCopyAVX2(dst, src, n, state)
}

// foldStream is foldCopy with non-temporal stores. dst is aligned to foldUnit.
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
