// A cuBLASLt library that needs no GPU, in the same file as the driver, whose memory and
// streams it uses. It is stricter than the real one where a mistake could go unnoticed:
//
//   - An algorithm is good for the shapes, types and distances that it was asked for, and
//     for nothing else; one that may cut sums into parts is refused.
//   - Matrices and workspace begin at multiples of 256 bytes, which is what a heuristic
//     takes for granted where nobody says otherwise. They lie in one live allocation each,
//     when a product is enqueued and when it runs, and do not overlap what is written.
//   - A product runs when its stream does, and fills the workspace with NaNs.
//   - A handle works in the context that it was made in, and nowhere else.
//
// Sums are float32, of sixteen chains: another order than that of the engine's kernels.
#ifndef TDM_FAKE_BLASLT_H
#define TDM_FAKE_BLASLT_H

#include "driver.h"

#include "tdm_blaslt_api.h"

struct cublasLtContext {
	CUcontext context;
};

struct cublasLtMatmulDescStruct {
	int compute, scale;
	int32_t transposed[2]; // a, b
};

struct cublasLtMatrixLayoutStruct {
	int type;
	uint64_t rows, columns;
	int64_t ld;
};

struct cublasLtMatmulPreferenceStruct {
	uint64_t workspace;
	uint32_t reductions;
};

namespace fake {

// Form is all that an algorithm depends on.
struct Form {
	cublasLtMatmulDescStruct desc;
	cublasLtMatrixLayoutStruct a, b, c, d;
};

// Multiplication is a product that is on its way.
struct Multiplication {
	Form form;
	float alpha, beta;
	uintptr_t a, b, d, workspace;
};

// multiply computes it.
void multiply(const Multiplication &m);
// span is the bytes from a matrix's first element to the end of its last.
size_t span(const cublasLtMatrixLayoutStruct &layout);

} // namespace fake

#endif
