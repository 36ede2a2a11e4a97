#include "textflag.h"

// func hasVPCLMULQDQ() bool
//
// It is bit 10 of ECX of leaf 7.0, which every processor with AVX2 has.
TEXT ·hasVPCLMULQDQ(SB), NOSPLIT, $0-1
	MOVL $7, AX
	XORL CX, CX
	CPUID
	BTL $10, CX
	SETCS ret+0(FP)
	RET
