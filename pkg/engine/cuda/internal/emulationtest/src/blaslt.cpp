// cuBLASLt: handles, descriptors, algorithms and products, each checked.

#include "blaslt.h"

#include <cstring>

using namespace fake;

namespace {

const uint64_t needed = 1 << 20; // bytes of workspace of every algorithm
const uint64_t magic = 0x74646d616c676f;

// Products is what is alive, and the algorithms that were given out, by number.
struct Products {
	std::set<cublasLtHandle_t> handles;
	std::set<cublasLtMatmulDesc_t> descs;
	std::set<cublasLtMatrixLayout_t> layouts;
	std::set<cublasLtMatmulPreference_t> preferences;
	std::vector<Form> algorithms;
};

Products &products() {
	static Products *p = new Products;
	return *p;
}

bool same(const cublasLtMatrixLayoutStruct &x, const cublasLtMatrixLayoutStruct &y) {
	return x.type == y.type && x.rows == y.rows && x.columns == y.columns && x.ld == y.ld;
}

bool same(const cublasLtMatmulDescStruct &x, const cublasLtMatmulDescStruct &y) {
	return x.compute == y.compute && x.scale == y.scale && x.transposed[0] == y.transposed[0] && x.transposed[1] == y.transposed[1];
}

bool same(const Form &x, const Form &y) {
	return same(x.desc, y.desc) && same(x.a, y.a) && same(x.b, y.b) && same(x.c, y.c) && same(x.d, y.d);
}

// status is what cuBLASLt says where the driver refuses.
cublasStatus_t status(CUresult code) {
	switch (code) {
	case CUDA_SUCCESS:
		return CUBLAS_STATUS_SUCCESS;
	case CUDA_ERROR_NOT_INITIALIZED:
	case CUDA_ERROR_INVALID_CONTEXT:
		return CUBLAS_STATUS_NOT_INITIALIZED;
	}
	return CUBLAS_STATUS_EXECUTION_FAILED;
}

// status of a call: a code that a test asked for is cuBLASLt's already.
cublasStatus_t status(const Call &call) { return call.asked ? call.code : status(call.code); }

cublasStatus_t wrong(const std::string &why) { return refuse(CUBLAS_STATUS_INVALID_VALUE, why); }

// create and drop keep a set of what is alive.
template <class T> cublasStatus_t create(const char *name, std::set<T *> &alive, T **made, const T &value) {
	Call call(name);
	if (call.code != CUDA_SUCCESS)
		return status(call);
	*made = new T(value);
	alive.insert(*made);
	return CUBLAS_STATUS_SUCCESS;
}

template <class T> cublasStatus_t drop(const char *name, std::set<T *> &alive, T *what) {
	Call call(name);
	if (call.code != CUDA_SUCCESS)
		return status(call);
	if (!alive.erase(what))
		return wrong("what is destroyed was not made, or was destroyed before");
	delete what;
	return CUBLAS_STATUS_SUCCESS;
}

// HandleCall is a call with a handle: of the context that is current.
struct HandleCall : InContext {
	HandleCall(const char *name, cublasLtHandle_t handle) : InContext(name) {
		if (code != CUDA_SUCCESS)
			code = status(*this);
		else if (!products().handles.count(handle))
			code = wrong("no such handle");
		else if (handle->context != context)
			code = wrong("the handle is of another context");
	}
};

// form collects what a product is described by, and says what is wrong with it.
const char *form(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
	cublasLtMatrixLayout_t d, Form *f) {
	const Products &p = products();
	if (!p.descs.count(desc) || !p.layouts.count(a) || !p.layouts.count(b) || !p.layouts.count(c) || !p.layouts.count(d))
		return "a descriptor or layout does not exist";
	*f = {*desc, *a, *b, *c, *d};
	if (desc->compute != CUBLAS_COMPUTE_32F || desc->scale != CUDA_R_32F)
		return "sums and factors are float32 here";
	if (desc->transposed[0] != CUBLAS_OP_T || desc->transposed[1] != CUBLAS_OP_N)
		return "the first matrix is transposed here, the second is not";
	if (a->type != CUDA_R_16BF || b->type != CUDA_R_16BF || !same(*c, *d))
		return "factors are bf16 here, and the result is where it was";
	if (a->rows != b->rows || d->rows != a->columns || d->columns != b->columns)
		return "the matrices do not fit each other";
	return nullptr;
}

bool aligned(uintptr_t address) { return address % 256 == 0; }

bool overlap(uintptr_t x, size_t bytes_x, uintptr_t y, size_t bytes_y) { return x < y + bytes_y && y < x + bytes_x; }

bool all_covered(const Multiplication &m) {
	return covers(m.a, span(m.form.a), false) && covers(m.b, span(m.form.b), false) && covers(m.d, span(m.form.d), false) &&
	       covers(m.workspace, needed, false);
}

CUresult run(CUcontext context, const Multiplication &m) {
	if (!all_covered(m))
		return lose(context, CUDA_ERROR_ILLEGAL_ADDRESS, "memory was freed before a product of it ran");
	std::memset(reinterpret_cast<void *>(m.workspace), 0xff, needed);
	multiply(m);
	return CUDA_SUCCESS;
}

} // namespace

size_t fake::products_live() {
	const Products &p = products();
	return p.handles.size() + p.descs.size() + p.layouts.size() + p.preferences.size();
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
	InContext call("cublasLtCreate");
	if (call.code != CUDA_SUCCESS)
		return status(call);
	*handle = new cublasLtContext{call.context};
	products().handles.insert(*handle);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return drop("cublasLtDestroy", products().handles, handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, int compute, int scale) {
	return create("cublasLtMatmulDescCreate", products().descs, desc, {compute, scale, {CUBLAS_OP_N, CUBLAS_OP_N}});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
	return drop("cublasLtMatmulDescDestroy", products().descs, desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, int name, const void *value, size_t bytes) {
	Call call("cublasLtMatmulDescSetAttribute");
	if (call.code != CUDA_SUCCESS)
		return status(call);
	if (!products().descs.count(desc) || (name != CUBLASLT_MATMUL_DESC_TRANSA && name != CUBLASLT_MATMUL_DESC_TRANSB) ||
		bytes != sizeof(int32_t))
		return wrong("no such descriptor, or another attribute than the two that are int32_t");
	std::memcpy(&desc->transposed[name - CUBLASLT_MATMUL_DESC_TRANSA], value, bytes);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
	if ((type != CUDA_R_32F && type != CUDA_R_16BF) || rows == 0 || columns == 0 || ld < (int64_t)rows) {
		Call call("");
		return wrong("a matrix of another type, of no size, or with columns that overlap");
	}
	return create("cublasLtMatrixLayoutCreate", products().layouts, layout, {type, rows, columns, ld});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
	return drop("cublasLtMatrixLayoutDestroy", products().layouts, layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
	return create("cublasLtMatmulPreferenceCreate", products().preferences, preference, {0, ~0u});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
	return drop("cublasLtMatmulPreferenceDestroy", products().preferences, preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, int name, const void *value, size_t bytes) {
	Call call("cublasLtMatmulPreferenceSetAttribute");
	if (call.code != CUDA_SUCCESS)
		return status(call);
	if (!products().preferences.count(preference))
		return wrong("no such preference");
	if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof preference->workspace)
		std::memcpy(&preference->workspace, value, bytes);
	else if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == sizeof preference->reductions)
		std::memcpy(&preference->reductions, value, bytes);
	else
		return wrong("another preference, or of another size");
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
	cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
	int most, cublasLtMatmulHeuristicResult_t *results, int *found) {
	HandleCall call("cublasLtMatmulAlgoGetHeuristic", handle);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	Form f;
	if (const char *why = form(desc, a, b, c, d, &f))
		return wrong(why);
	if (!products().preferences.count(preference) || most < 1)
		return wrong("no such preference, or no result wanted");
	*found = 0;
	if (preference->reductions != CUBLASLT_REDUCTION_SCHEME_NONE)
		return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "sums must not be cut into parts");
	if (preference->workspace < needed)
		return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the workspace is too small");
	results[0] = {};
	results[0].algo.data[0] = magic;
	results[0].algo.data[1] = products().algorithms.size();
	results[0].workspaceSize = needed;
	products().algorithms.push_back(f);
	*found = 1;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
	cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
	cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
	void *workspace, size_t workspace_bytes, cudaStream_t stream) {
	HandleCall call("cublasLtMatmul", handle);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	Multiplication m;
	if (const char *why = form(desc, a_layout, b_layout, c_layout, d_layout, &m.form))
		return wrong(why);
	const std::vector<Form> &known = products().algorithms;
	if (!algo || algo->data[0] != magic || algo->data[1] >= known.size() || !same(known[algo->data[1]], m.form))
		return wrong("the algorithm was not given for this product");
	std::memcpy(&m.alpha, alpha, sizeof m.alpha);
	std::memcpy(&m.beta, beta, sizeof m.beta);
	m.a = reinterpret_cast<uintptr_t>(a), m.b = reinterpret_cast<uintptr_t>(b), m.d = reinterpret_cast<uintptr_t>(d);
	m.workspace = reinterpret_cast<uintptr_t>(workspace);
	const size_t bytes = span(m.form.d);
	if (c != d || !aligned(m.a) || !aligned(m.b) || !aligned(m.d) || !aligned(m.workspace))
		return wrong("a matrix or the workspace does not begin at a multiple of 256, or two results");
	if (workspace_bytes < needed || !covers(m.workspace, workspace_bytes, false) || !all_covered(m))
		return wrong("a matrix or the workspace is not within one allocation of device memory");
	if (overlap(m.d, bytes, m.a, span(m.form.a)) || overlap(m.d, bytes, m.b, span(m.form.b)) ||
		overlap(m.workspace, workspace_bytes, m.a, span(m.form.a)) || overlap(m.workspace, workspace_bytes, m.b, span(m.form.b)) ||
		overlap(m.workspace, workspace_bytes, m.d, bytes))
		return wrong("what is written overlaps what is read");
	Op op;
	op.kind = Kind::work;
	op.work = [m](CUcontext context) { return run(context, m); };
	return status(enqueue(call.context, stream, op));
}

size_t cublasLtGetVersion(void) {
	std::lock_guard<std::mutex> lock(state().mutex);
	return (size_t)state().cublaslt;
}

const char *cublasLtGetStatusName(cublasStatus_t code) {
	switch (code) {
	case CUBLAS_STATUS_SUCCESS:
		return "CUBLAS_STATUS_SUCCESS";
	case CUBLAS_STATUS_NOT_INITIALIZED:
		return "CUBLAS_STATUS_NOT_INITIALIZED";
	case CUBLAS_STATUS_ALLOC_FAILED:
		return "CUBLAS_STATUS_ALLOC_FAILED";
	case CUBLAS_STATUS_INVALID_VALUE:
		return "CUBLAS_STATUS_INVALID_VALUE";
	case CUBLAS_STATUS_EXECUTION_FAILED:
		return "CUBLAS_STATUS_EXECUTION_FAILED";
	case CUBLAS_STATUS_NOT_SUPPORTED:
		return "CUBLAS_STATUS_NOT_SUPPORTED";
	}
	return "CUBLAS_STATUS_INTERNAL_ERROR";
}

// Gives the reason of the last refusal, if the code is that one's.
const char *cublasLtGetStatusString(cublasStatus_t code) {
	State &s = state();
	std::lock_guard<std::mutex> lock(s.mutex);
	static std::set<std::string> texts;
	return texts.insert(code == s.refused && !s.why.empty() ? s.why : "no reason known").first->c_str();
}

#define DECLARE(name, parameters) cublasStatus_t name parameters;
TDM_BLASLT_CALLS(DECLARE)
#undef DECLARE
#define DECLARE(type, name, parameters) type name parameters;
TDM_BLASLT_ANSWERS(DECLARE)
#undef DECLARE

} // extern "C"
