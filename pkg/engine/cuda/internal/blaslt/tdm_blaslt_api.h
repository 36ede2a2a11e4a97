// What the engine uses of cuBLASLt, 12.0 and later: types, values and the symbols to look
// up. The values are part of the library's binary interface and do not change. Matrices
// are column by column.
#ifndef TDM_BLASLT_API_H
#define TDM_BLASLT_API_H

#include <stddef.h>
#include <stdint.h>

typedef int cublasStatus_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtMatmulDescStruct *cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayoutStruct *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreferenceStruct *cublasLtMatmulPreference_t;
typedef struct CUstream_st *cudaStream_t;

// cublasLtMatmulAlgo_t: how to compute a product, nobody's business but the library's.
typedef struct cublasLtMatmulAlgo {
	uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct cublasLtMatmulHeuristicResult {
	cublasLtMatmulAlgo_t algo;
	size_t workspaceSize;
	cublasStatus_t state; // the rest counts where this is success
	float wavesCount;
	int reserved[4];
} cublasLtMatmulHeuristicResult_t;

// cublasStatus_t
enum {
	CUBLAS_STATUS_SUCCESS = 0,
	CUBLAS_STATUS_NOT_INITIALIZED = 1,
	CUBLAS_STATUS_ALLOC_FAILED = 3,
	CUBLAS_STATUS_INVALID_VALUE = 7,
	CUBLAS_STATUS_EXECUTION_FAILED = 13,
	CUBLAS_STATUS_INTERNAL_ERROR = 14,
	CUBLAS_STATUS_NOT_SUPPORTED = 15,
};

// cudaDataType, cublasComputeType_t, cublasOperation_t
enum {
	CUDA_R_32F = 0,
	CUDA_R_16BF = 14,
	CUBLAS_COMPUTE_32F = 68,
	CUBLAS_OP_N = 0,
	CUBLAS_OP_T = 1,
};

// cublasLtMatmulDescAttributes_t: int32_t each
enum {
	CUBLASLT_MATMUL_DESC_TRANSA = 3,
	CUBLASLT_MATMUL_DESC_TRANSB = 4,
};

// cublasLtMatmulPreferenceAttributes_t: uint64_t, then uint32_t
enum {
	CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
	CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
};

// No sum is cut into parts that are added up later.
enum { CUBLASLT_REDUCTION_SCHEME_NONE = 0 };

// TDM_BLASLT_CALLS names what returns a status, with its parameters.
#define TDM_BLASLT_CALLS(X)                                                                                \
	X(cublasLtCreate, (cublasLtHandle_t * handle))                                                         \
	X(cublasLtDestroy, (cublasLtHandle_t handle))                                                          \
	X(cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t * desc, int compute, int scale))                     \
	X(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc))                                              \
	X(cublasLtMatmulDescSetAttribute, (cublasLtMatmulDesc_t desc, int name, const void *value, size_t bytes)) \
	X(cublasLtMatrixLayoutCreate, (cublasLtMatrixLayout_t * layout, int type, uint64_t rows, uint64_t columns, int64_t ld)) \
	X(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout))                                        \
	X(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference))                           \
	X(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference))                            \
	X(cublasLtMatmulPreferenceSetAttribute,                                                                \
		(cublasLtMatmulPreference_t preference, int name, const void *value, size_t bytes))                \
	X(cublasLtMatmulAlgoGetHeuristic,                                                                      \
		(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, \
			cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int most, \
			cublasLtMatmulHeuristicResult_t * results, int *found))                                        \
	X(cublasLtMatmul,                                                                                      \
		(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,             \
			cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout, const void *beta, \
			const void *c, cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,      \
			const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes, cudaStream_t stream))

// TDM_BLASLT_ANSWERS names the rest, with what each gives.
#define TDM_BLASLT_ANSWERS(X)                                 \
	X(size_t, cublasLtGetVersion, (void))                     \
	X(const char *, cublasLtGetStatusName, (cublasStatus_t code)) \
	X(const char *, cublasLtGetStatusString, (cublasStatus_t code))

#endif
