#include "textflag.h"

// CRC-32C by folding, after V. Gopal et al., "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ Instruction" (Intel, 2009): 256 bytes in registers are
// multiplied by a power of x modulo the polynomial, which moves them 256 bytes on,
// and added to the next 256 bytes. Each lane is 16 bytes. Its low half is multiplied
// by x^(d+31), its high half by x^(d-33), both modulo 0x11EDC6F41 and bit-reflected,
// where d is the distance in bits. What is left at the end, 16 bytes that are
// congruent to the text, goes through the CRC32 instruction.

// Folding over 256 bytes.
DATA fold256<>+0(SB)/8, $0x00000000dcb17aa4
DATA fold256<>+8(SB)/8, $0x00000000b9e02b86
GLOBL fold256<>(SB), RODATA|NOPTR, $16

// Folding over 64 bytes.
DATA fold64<>+0(SB)/8, $0x00000000740eef02
DATA fold64<>+8(SB)/8, $0x000000009e4addf8
GLOBL fold64<>(SB), RODATA|NOPTR, $16

// Folding the first three of four lanes into the last, which stays as it is: over 48,
// 32 and 16 bytes.
DATA foldLanes<>+0(SB)/8, $0x000000001c291d04
DATA foldLanes<>+8(SB)/8, $0x00000000ddc0152b
DATA foldLanes<>+16(SB)/8, $0x000000003da6d0cb
DATA foldLanes<>+24(SB)/8, $0x00000000ba4fc28e
DATA foldLanes<>+32(SB)/8, $0x00000000f20c0dfe
DATA foldLanes<>+40(SB)/8, $0x00000000493c7d27
DATA foldLanes<>+48(SB)/8, $0x0000000000000000
DATA foldLanes<>+56(SB)/8, $0x0000000000000000
GLOBL foldLanes<>(SB), RODATA|NOPTR, $64

// FOLD adds the CX bytes at SI, a multiple of 64 and 256 at least, to the state in
// AX, where it leaves the new one. What it is made of follows for each width of
// register; all of them add the state by X4 and leave the last 16 bytes in X6:
//
//	FIRST(put)       read 256 bytes
//	START            add the state to them
//	ROUND(put)       fold them into the next 256
//	GATHER           fold them into their last 64
//	UNIT(put, step)  fold those into the next 64
//	LAST             fold those into their last 16
//
// put(register, at) writes what was read to DI + at, step(bytes) moves DI on, and
// ahead fetches what the rounds after this one read.
#define FOLD(put, step, ahead) \
	FIRST(put); \
	step(256); \
	ADDQ $256, SI; \
	SUBQ $256, CX; \
	VMOVD AX, X4; \
	START; \
	CMPQ CX, $256; \
	JLT gather; \
loop: \
	ahead; \
	ROUND(put); \
	step(256); \
	ADDQ $256, SI; \
	SUBQ $256, CX; \
	CMPQ CX, $256; \
	JGE loop; \
gather: \
	GATHER; \
	TESTQ CX, CX; \
	JE last; \
unit: \
	UNIT(put, step); \
	ADDQ $64, SI; \
	SUBQ $64, CX; \
	JNE unit; \
last: \
	LAST; \
	VMOVQ X6, R8; \
	VPEXTRQ $1, X6, R9; \
	XORL AX, AX; \
	CRC32Q R8, AX; \
	CRC32Q R9, AX

#define NO_PUT(register, at)
#define NO_STEP(bytes)
#define NO_AHEAD

#define STEP(bytes) ADDQ $bytes, DI

#define AHEAD \
	PREFETCHT0 2048(SI); \
	PREFETCHT0 2112(SI); \
	PREFETCHT0 2176(SI); \
	PREFETCHT0 2240(SI)

// AVX-512: the 256 bytes are in Z0 to Z3.

#define PUT(register, at) VMOVDQU64 register, at(DI)
#define PUT_STREAM(register, at) VMOVNTDQ register, at(DI)

#define READ(put, a, b, c, d) \
	VMOVDQU64 0(SI), a; \
	VMOVDQU64 64(SI), b; \
	VMOVDQU64 128(SI), c; \
	VMOVDQU64 192(SI), d; \
	put(a, 0); \
	put(b, 64); \
	put(c, 128); \
	put(d, 192)

#define FIRST(put) READ(put, Z0, Z1, Z2, Z3)

#define START \
	VPXORQ Z4, Z0, Z0; \
	VBROADCASTI32X4 fold256<>(SB), Z5

#define ROUND(put) \
	READ(put, Z8, Z9, Z10, Z11); \
	VPCLMULQDQ $0x00, Z5, Z0, Z12; \
	VPCLMULQDQ $0x00, Z5, Z1, Z13; \
	VPCLMULQDQ $0x00, Z5, Z2, Z14; \
	VPCLMULQDQ $0x00, Z5, Z3, Z15; \
	VPCLMULQDQ $0x11, Z5, Z0, Z0; \
	VPCLMULQDQ $0x11, Z5, Z1, Z1; \
	VPCLMULQDQ $0x11, Z5, Z2, Z2; \
	VPCLMULQDQ $0x11, Z5, Z3, Z3; \
	VPTERNLOGQ $0x96, Z12, Z8, Z0; \
	VPTERNLOGQ $0x96, Z13, Z9, Z1; \
	VPTERNLOGQ $0x96, Z14, Z10, Z2; \
	VPTERNLOGQ $0x96, Z15, Z11, Z3

#define INTO(from, to) \
	VPCLMULQDQ $0x00, Z5, from, Z6; \
	VPCLMULQDQ $0x11, Z5, from, Z7; \
	VPTERNLOGQ $0x96, Z6, Z7, to

#define GATHER \
	VBROADCASTI32X4 fold64<>(SB), Z5; \
	INTO(Z0, Z1); \
	INTO(Z1, Z2); \
	INTO(Z2, Z3)

#define UNIT(put, step) \
	VMOVDQU64 (SI), Z8; \
	put(Z8, 0); \
	step(64); \
	VPCLMULQDQ $0x00, Z5, Z3, Z6; \
	VPCLMULQDQ $0x11, Z5, Z3, Z3; \
	VPTERNLOGQ $0x96, Z6, Z8, Z3

#define LAST \
	VMOVDQU64 foldLanes<>(SB), Z5; \
	VPCLMULQDQ $0x00, Z5, Z3, Z6; \
	VPCLMULQDQ $0x11, Z5, Z3, Z7; \
	VEXTRACTI32X4 $3, Z3, X8; \
	VPXORQ Z7, Z6, Z6; \
	VEXTRACTI64X4 $1, Z6, Y7; \
	VPXOR Y7, Y6, Y6; \
	VEXTRACTI128 $1, Y6, X7; \
	VPXOR X7, X6, X6; \
	VPXOR X8, X6, X6

// func foldAVX512(src *byte, n int, state uint32) uint32
TEXT ·foldAVX512(SB), NOSPLIT, $0-28
	MOVQ src+0(FP), SI
	MOVQ n+8(FP), CX
	MOVL state+16(FP), AX
	FOLD(NO_PUT, NO_STEP, NO_AHEAD)
	VZEROUPPER
	MOVL AX, ret+24(FP)
	RET

// func foldCopyAVX512(dst, src *byte, n int, state uint32) uint32
TEXT ·foldCopyAVX512(SB), NOSPLIT, $0-36
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL state+24(FP), AX
	FOLD(PUT, STEP, AHEAD)
	VZEROUPPER
	MOVL AX, ret+32(FP)
	RET

// func foldStreamAVX512(dst, src *byte, n int, state uint32) uint32
TEXT ·foldStreamAVX512(SB), NOSPLIT, $0-36
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL state+24(FP), AX
	FOLD(PUT_STREAM, STEP, NO_AHEAD)
	SFENCE
	VZEROUPPER
	MOVL AX, ret+32(FP)
	RET

#undef PUT
#undef PUT_STREAM
#undef READ
#undef FIRST
#undef START
#undef ROUND
#undef INTO
#undef GATHER
#undef UNIT
#undef LAST

// AVX2: the 256 bytes are in Y8 to Y15. Of VPCLMULQDQ on these registers the
// assembler writes the VEX form, which needs no AVX-512.

#define PUT(register, at) VMOVDQU register, at(DI)
#define PUT_STREAM(register, at) VMOVNTDQ register, at(DI)

#define READ(put, at, to) \
	VMOVDQU at(SI), to; \
	put(to, at)

#define FIRST(put) \
	READ(put, 0, Y8); \
	READ(put, 32, Y9); \
	READ(put, 64, Y10); \
	READ(put, 96, Y11); \
	READ(put, 128, Y12); \
	READ(put, 160, Y13); \
	READ(put, 192, Y14); \
	READ(put, 224, Y15)

#define START \
	VPXOR Y4, Y8, Y8; \
	VBROADCASTI128 fold256<>(SB), Y5

#define ON(put, at, lanes) \
	READ(put, at, Y0); \
	VPCLMULQDQ $0x00, Y5, lanes, Y6; \
	VPCLMULQDQ $0x11, Y5, lanes, Y7; \
	VPXOR Y6, Y0, Y0; \
	VPXOR Y7, Y0, lanes

#define ROUND(put) \
	ON(put, 0, Y8); \
	ON(put, 32, Y9); \
	ON(put, 64, Y10); \
	ON(put, 96, Y11); \
	ON(put, 128, Y12); \
	ON(put, 160, Y13); \
	ON(put, 192, Y14); \
	ON(put, 224, Y15)

#define INTO(from, to) \
	VPCLMULQDQ $0x00, Y5, from, Y6; \
	VPCLMULQDQ $0x11, Y5, from, Y7; \
	VPXOR Y6, to, to; \
	VPXOR Y7, to, to

#define GATHER \
	VBROADCASTI128 fold64<>(SB), Y5; \
	INTO(Y8, Y10); \
	INTO(Y9, Y11); \
	INTO(Y10, Y12); \
	INTO(Y11, Y13); \
	INTO(Y12, Y14); \
	INTO(Y13, Y15)

#define UNIT(put, step) \
	ON(put, 0, Y14); \
	ON(put, 32, Y15); \
	step(64)

#define LAST \
	VMOVDQU foldLanes<>+0(SB), Y5; \
	VPCLMULQDQ $0x00, Y5, Y14, Y0; \
	VPCLMULQDQ $0x11, Y5, Y14, Y6; \
	VPXOR Y6, Y0, Y0; \
	VMOVDQU foldLanes<>+32(SB), Y5; \
	INTO(Y15, Y0); \
	VEXTRACTI128 $1, Y0, X6; \
	VPXOR X0, X6, X6; \
	VEXTRACTI128 $1, Y15, X7; \
	VPXOR X7, X6, X6

// func foldAVX2(src *byte, n int, state uint32) uint32
TEXT ·foldAVX2(SB), NOSPLIT, $0-28
	MOVQ src+0(FP), SI
	MOVQ n+8(FP), CX
	MOVL state+16(FP), AX
	FOLD(NO_PUT, NO_STEP, AHEAD)
	VZEROUPPER
	MOVL AX, ret+24(FP)
	RET

// func foldCopyAVX2(dst, src *byte, n int, state uint32) uint32
TEXT ·foldCopyAVX2(SB), NOSPLIT, $0-36
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL state+24(FP), AX
	FOLD(PUT, STEP, AHEAD)
	VZEROUPPER
	MOVL AX, ret+32(FP)
	RET

// func foldStreamAVX2(dst, src *byte, n int, state uint32) uint32
TEXT ·foldStreamAVX2(SB), NOSPLIT, $0-36
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL state+24(FP), AX
	FOLD(PUT_STREAM, STEP, AHEAD)
	SFENCE
	VZEROUPPER
	MOVL AX, ret+32(FP)
	RET
