// Modules and their functions.

#include "tdm_call.h"

tdm_outcome tdm_module_load(const tdm_device *v, const char *ptx, char *log, size_t log_bytes) {
	log[0] = 0;
	TDM_ENTER(v);
	int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, (void *)(uintptr_t)log_bytes}; // a number goes as a pointer, by the API
	CUmodule module;
	TDM_CALL(v->driver, cuModuleLoadDataEx, &module, ptx, 2, options, values);
	return TDM_MADE(module);
}

tdm_outcome tdm_module_unload(const tdm_device *v, CUmodule module) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuModuleUnload, module);
	return TDM_DONE;
}

// parameters counts those of a function. Past the last the driver says that the number is
// invalid; any other error means that it does not know.
static void parameters(const tdm_driver *driver, CUfunction handle, tdm_function *function) {
	function->parameters = -1;
	if (!driver->cuFuncGetParamInfo)
		return;
	for (int64_t count = 0;; count++) {
		size_t offset, bytes;
		const CUresult code = driver->cuFuncGetParamInfo(handle, (size_t)count, &offset, &bytes);
		if (code == CUDA_ERROR_INVALID_VALUE)
			function->parameters = count;
		if (code != CUDA_SUCCESS)
			return;
		if (count == 0)
			function->bytes = (int64_t)bytes;
	}
}

static tdm_outcome find(const tdm_device *v, CUmodule module, const char *name, tdm_function *function) {
	TDM_ENTER(v);
	CUfunction handle;
	TDM_CALL(v->driver, cuModuleGetFunction, &handle, module, name);
	int registers; // to ask for them loads the function
	TDM_CALL(v->driver, cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS, handle);
	parameters(v->driver, handle, function);
	return TDM_MADE(handle);
}

tdm_function tdm_module_function(const tdm_device *v, CUmodule module, const char *name) {
	tdm_function function = {.parameters = 0};
	function.outcome = find(v, module, name, &function);
	return function;
}

tdm_outcome tdm_function_allow_shared(const tdm_device *v, CUfunction function, int bytes) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
	return TDM_DONE;
}

tdm_outcome tdm_function_prefer_shared(const tdm_device *v, CUfunction function) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);
	return TDM_DONE;
}

tdm_outcome tdm_function_blocks(const tdm_device *v, CUfunction function, int block, size_t shared, int *blocks) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuOccupancyMaxActiveBlocksPerMultiprocessor, blocks, function, block, shared);
	return TDM_DONE;
}
