// Handles, plans, products. The library's matrices are column by column, ours row by row,
// which is each the other's transposed: what is computed is out' = w * a'.

#include "tdm_blaslt.h"

_Static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96, "the library writes 96 bytes");

// TDM_CALL returns from the calling function if the library's function fails.
#define TDM_CALL(blaslt, name, ...)                                        \
	do {                                                                   \
		const cublasStatus_t code_ = (blaslt)->name(__VA_ARGS__);          \
		if (code_ != CUBLAS_STATUS_SUCCESS)                                \
			return (tdm_blaslt_outcome){.call = #name, .code = code_};     \
	} while (0)

#define TDM_DONE ((tdm_blaslt_outcome){.code = CUBLAS_STATUS_SUCCESS})

tdm_blaslt_outcome tdm_blaslt_create(const tdm_blaslt *b) {
	cublasLtHandle_t handle;
	TDM_CALL(b, cublasLtCreate, &handle);
	return (tdm_blaslt_outcome){.made = handle, .code = CUBLAS_STATUS_SUCCESS};
}

tdm_blaslt_outcome tdm_blaslt_destroy(const tdm_blaslt *b, cublasLtHandle_t handle) {
	TDM_CALL(b, cublasLtDestroy, handle);
	return TDM_DONE;
}

static tdm_blaslt_outcome describe(const tdm_blaslt *b, const tdm_blaslt_shape *s, tdm_blaslt_plan *p) {
	TDM_CALL(b, cublasLtMatmulDescCreate, &p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	const int32_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
	TDM_CALL(b, cublasLtMatmulDescSetAttribute, p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
	TDM_CALL(b, cublasLtMatmulDescSetAttribute, p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain);
	TDM_CALL(b, cublasLtMatrixLayoutCreate, &p->w, CUDA_R_16BF, (uint64_t)s->k, (uint64_t)s->outputs, s->ldw);
	TDM_CALL(b, cublasLtMatrixLayoutCreate, &p->a, CUDA_R_16BF, (uint64_t)s->k, (uint64_t)s->rows, s->lda);
	TDM_CALL(b, cublasLtMatrixLayoutCreate, &p->out, s->narrow ? CUDA_R_16BF : CUDA_R_32F, (uint64_t)s->outputs,
		(uint64_t)s->rows, s->ldo);
	return TDM_DONE;
}

// choose asks for an algorithm that cuts no sum into parts.
static tdm_blaslt_outcome choose(
	const tdm_blaslt *b, const tdm_blaslt_shape *s, cublasLtMatmulPreference_t preference, tdm_blaslt_plan *p) {
	const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
	TDM_CALL(b, cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &s->workspace,
		sizeof s->workspace);
	TDM_CALL(b, cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none);
	cublasLtMatmulHeuristicResult_t best = {.state = CUBLAS_STATUS_NOT_SUPPORTED};
	int found = 0;
	TDM_CALL(b, cublasLtMatmulAlgoGetHeuristic, p->handle, p->desc, p->w, p->a, p->out, p->out, preference, 1, &best, &found);
	if (found < 1 || best.state != CUBLAS_STATUS_SUCCESS) {
		const int code = found < 1 ? CUBLAS_STATUS_NOT_SUPPORTED : best.state;
		return (tdm_blaslt_outcome){.call = "cublasLtMatmulAlgoGetHeuristic", .code = code};
	}
	p->algo = best.algo;
	return TDM_DONE;
}

static tdm_blaslt_outcome fill(const tdm_blaslt *b, const tdm_blaslt_shape *s, tdm_blaslt_plan *p) {
	tdm_blaslt_outcome outcome = describe(b, s, p);
	if (outcome.code != CUBLAS_STATUS_SUCCESS)
		return outcome;
	cublasLtMatmulPreference_t preference;
	TDM_CALL(b, cublasLtMatmulPreferenceCreate, &preference);
	outcome = choose(b, s, preference, p);
	const cublasStatus_t code = b->cublasLtMatmulPreferenceDestroy(preference);
	if (outcome.code == CUBLAS_STATUS_SUCCESS && code != CUBLAS_STATUS_SUCCESS)
		outcome = (tdm_blaslt_outcome){.call = "cublasLtMatmulPreferenceDestroy", .code = code};
	return outcome;
}

tdm_blaslt_outcome tdm_blaslt_plan_make(
	const tdm_blaslt *b, cublasLtHandle_t handle, const tdm_blaslt_shape *s, tdm_blaslt_plan *p) {
	p->blaslt = b;
	p->handle = handle;
	p->workspace = s->workspace;
	p->beta = s->add ? 1 : 0;
	const tdm_blaslt_outcome outcome = fill(b, s, p);
	if (outcome.code != CUBLAS_STATUS_SUCCESS)
		(void)tdm_blaslt_plan_free(p); // what went wrong first is what to say
	return outcome;
}

tdm_blaslt_outcome tdm_blaslt_plan_free(tdm_blaslt_plan *p) {
	tdm_blaslt_outcome outcome = TDM_DONE;
	cublasLtMatrixLayout_t *const layouts[] = {&p->w, &p->a, &p->out};
	for (int i = 0; i < 3; i++) {
		const int code = *layouts[i] ? p->blaslt->cublasLtMatrixLayoutDestroy(*layouts[i]) : CUBLAS_STATUS_SUCCESS;
		if (code != CUBLAS_STATUS_SUCCESS)
			outcome = (tdm_blaslt_outcome){.call = "cublasLtMatrixLayoutDestroy", .code = code};
		*layouts[i] = NULL;
	}
	const int code = p->desc ? p->blaslt->cublasLtMatmulDescDestroy(p->desc) : CUBLAS_STATUS_SUCCESS;
	if (code != CUBLAS_STATUS_SUCCESS)
		outcome = (tdm_blaslt_outcome){.call = "cublasLtMatmulDescDestroy", .code = code};
	p->desc = NULL;
	return outcome;
}

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

int tdm_blaslt_multiply(const void *arguments, void *stream) {
	const tdm_blaslt_arguments *at = arguments;
	const tdm_blaslt_plan *p = pointer(at->plan);
	const float alpha = 1;
	return p->blaslt->cublasLtMatmul(p->handle, p->desc, &alpha, pointer(at->w), p->w, pointer(at->a), p->a, &p->beta,
		pointer(at->out), p->out, pointer(at->out), p->out, &p->algo, pointer(at->workspace), p->workspace, stream);
}
