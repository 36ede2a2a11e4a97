// Contract of the C of package blaslt. A tdm_blaslt is one opened library. What takes or
// makes a handle wants the device's context to be current on the calling thread. Nothing
// here allocates from the C heap, except where it says so.
#ifndef TDM_BLASLT_H
#define TDM_BLASLT_H

#include "tdm_blaslt_api.h"

typedef struct tdm_blaslt {
	void *library;           // the loader's handle
	struct tdm_blaslt *next; // of those opened before
#define TDM_FIELD(name, parameters) cublasStatus_t(*name) parameters;
	TDM_BLASLT_CALLS(TDM_FIELD)
#undef TDM_FIELD
#define TDM_FIELD(type, name, parameters) type(*name) parameters;
	TDM_BLASLT_ANSWERS(TDM_FIELD)
#undef TDM_FIELD
} tdm_blaslt;

// What tdm_blaslt_open found.
enum {
	TDM_BLASLT_OPENED,
	TDM_BLASLT_NO_LIBRARY, // text is the loader's message
	TDM_BLASLT_NO_SYMBOL,  // text is the symbol
	TDM_BLASLT_OLD,        // version is below TDM_BLASLT_LEAST_VERSION
	TDM_BLASLT_NO_MEMORY,
};

enum { TDM_BLASLT_LEAST_VERSION = 120000 };

typedef struct tdm_blaslt_opening {
	const tdm_blaslt *blaslt; // if it is opened
	int found;
	int64_t version; // 10000*major + 100*minor + patch
	char text[512];
} tdm_blaslt_opening;

// Opens the library, which stays open to the end of the process.
tdm_blaslt_opening tdm_blaslt_open(const char *library);

// How a call went: code is a cublasStatus_t, call the library's function that gave it,
// made what was made, where something is.
typedef struct tdm_blaslt_outcome {
	const char *call;
	void *made;
	int code;
} tdm_blaslt_outcome;

// What the library says of a code, never null.
const char *tdm_blaslt_name(const tdm_blaslt *blaslt, int code);
const char *tdm_blaslt_text(const tdm_blaslt *blaslt, int code);

tdm_blaslt_outcome tdm_blaslt_create(const tdm_blaslt *blaslt);
tdm_blaslt_outcome tdm_blaslt_destroy(const tdm_blaslt *blaslt, cublasLtHandle_t handle);

// A product out[rows][ldo] = a[rows][lda] * transposed w[outputs][ldw], over k; added to
// what out holds where add is not 0. a and w are bf16, sums float32, out is bf16 where
// narrow is not 0 and float32 otherwise. Sizes and distances are in elements.
typedef struct tdm_blaslt_shape {
	int64_t rows, outputs, k, lda, ldw, ldo;
	uint64_t workspace; // bytes, at most
	int narrow, add;
} tdm_blaslt_shape;

// A product, and how to compute it.
typedef struct tdm_blaslt_plan {
	const tdm_blaslt *blaslt;
	cublasLtHandle_t handle;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t w, a, out;
	cublasLtMatmulAlgo_t algo;
	uint64_t workspace;
	float beta;
} tdm_blaslt_plan;

// Fills a plan that is all zeros. After a failure there is nothing to free.
tdm_blaslt_outcome tdm_blaslt_plan_make(
	const tdm_blaslt *blaslt, cublasLtHandle_t handle, const tdm_blaslt_shape *shape, tdm_blaslt_plan *plan);
// Frees what a plan owns, all of it whatever fails.
tdm_blaslt_outcome tdm_blaslt_plan_free(tdm_blaslt_plan *plan);

// Where a plan finds its matrices, in device memory. The workspace is of the plan's size,
// and no other product may use it at the same time.
typedef struct tdm_blaslt_arguments {
	uint64_t plan; // a pointer
	uint64_t a, w, out, workspace;
} tdm_blaslt_arguments;

// Enqueues a product: arguments is a tdm_blaslt_arguments. Gives a cublasStatus_t.
int tdm_blaslt_multiply(const void *arguments, void *stream);

#endif
