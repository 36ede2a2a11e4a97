// Names of errors, and why the last call was refused.

#include "driver.h"

using namespace fake;

namespace {

struct Name {
	CUresult code;
	const char *name, *text;
};

#define NAME(code, text) {code, #code, text}
const Name names[] = {
	NAME(CUDA_SUCCESS, "no error"),
	NAME(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
	NAME(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
	NAME(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
	NAME(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
	NAME(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
	NAME(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
	NAME(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
	NAME(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
	NAME(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
	NAME(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"),
	NAME(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
	NAME(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
	NAME(CUDA_ERROR_NOT_READY, "device not ready"),
	NAME(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
	NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
	NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
	NAME(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
	NAME(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
	NAME(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
	NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
	NAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture was not initiated in this stream"),
	NAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread"),
	NAME(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef NAME

const Name *find(CUresult code) {
	for (const Name &n : names)
		if (n.code == code)
			return &n;
	return nullptr;
}

} // namespace

extern "C" {

CUresult cuGetErrorName(CUresult code, const char **name) {
	const Name *n = find(code);
	*name = n ? n->name : nullptr;
	return n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Says more than a driver does: the reason, if the code is of the last refusal. The texts
// stay, so they are kept.
CUresult cuGetErrorString(CUresult code, const char **text) {
	const Name *n = find(code);
	if (!n) {
		*text = nullptr;
		return CUDA_ERROR_INVALID_VALUE;
	}
	State &s = state();
	std::lock_guard<std::mutex> lock(s.mutex);
	static std::set<std::string> texts;
	const bool refused = code == s.refused && !s.why.empty();
	*text = texts.insert(refused ? std::string(n->text) + ": " + s.why : n->text).first->c_str();
	return CUDA_SUCCESS;
}

} // extern "C"
