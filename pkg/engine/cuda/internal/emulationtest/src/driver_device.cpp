// Devices, their primary contexts, and what the driver says of itself.

#include "driver.h"

#include <cstdio>

using namespace fake;

namespace {

// DeviceCall is a call about a device, which needs no context.
struct DeviceCall : Call {
	DeviceCall(const char *name, CUdevice device) : Call(name) {
		if (code == CUDA_SUCCESS && !state().started)
			code = refuse(CUDA_ERROR_NOT_INITIALIZED, "cuInit comes first");
		if (code == CUDA_SUCCESS && (device < 0 || (uint64_t)device >= state().devices))
			code = refuse(CUDA_ERROR_INVALID_DEVICE, "there is no such device");
	}
};

CUctx_st *primary(CUdevice device) {
	auto &contexts = state().contexts;
	while (contexts.size() <= (size_t)device) {
		contexts.emplace_back(new CUctx_st);
		contexts.back()->ordinal = (int)contexts.size() - 1;
	}
	return contexts[(size_t)device].get();
}

} // namespace

std::string fake::pci_address(int ordinal) {
	char text[16];
	(void)std::snprintf(text, sizeof text, "0000:%02x:00.0", ordinal & 0xff);
	return text;
}

extern "C" {

CUresult cuDriverGetVersion(int *version) {
	Call call("cuDriverGetVersion");
	*version = (int)state().version;
	return call.code;
}

CUresult cuInit(unsigned flags) {
	Call call("cuInit");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (flags != 0)
		return refuse(CUDA_ERROR_INVALID_VALUE, "cuInit takes no flags");
	if (state().devices == 0)
		return refuse(CUDA_ERROR_NO_DEVICE, "there are no devices");
	state().started = true;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
	DeviceCall call("cuDeviceGetCount", 0);
	*count = (int)state().devices;
	return call.code;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
	DeviceCall call("cuDeviceGet", ordinal);
	*device = ordinal;
	return call.code;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
	DeviceCall call("cuDeviceGetName", device);
	if (call.code == CUDA_SUCCESS)
		std::snprintf(name, (size_t)size, "Emulated GPU");
	return call.code;
}

CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device) {
	DeviceCall call("cuDeviceGetPCIBusId", device);
	if (call.code == CUDA_SUCCESS)
		std::snprintf(id, (size_t)size, "%s", pci_address(device).c_str());
	return call.code;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
	DeviceCall call("cuDeviceTotalMem_v2", device);
	*bytes = state().total;
	return call.code;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
	DeviceCall call("cuDeviceGetAttribute", device);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = 4;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = (int)state().capability / 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = (int)state().capability % 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		*value = most_shared;
		return CUDA_SUCCESS;
	}
	return refuse(CUDA_ERROR_INVALID_VALUE, "unknown attribute of a device");
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
	DeviceCall call("cuDevicePrimaryCtxRetain", device);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	*context = primary(device);
	(*context)->references++;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
	DeviceCall call("cuDevicePrimaryCtxRelease_v2", device);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	CUcontext context = primary(device);
	if (context->references == 0)
		return refuse(CUDA_ERROR_INVALID_CONTEXT, "the primary context is released more often than retained");
	if (--context->references == 0) {
		if (context->lost == CUDA_SUCCESS)
			(void)run_all(context); // what is under way ends first; nobody is left to hear of it
		destroy(context);
	}
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
	Call call("cuCtxSetCurrent");
	if (call.code == CUDA_SUCCESS)
		current() = context;
	return call.code;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
	InContext call("cuCtxGetStreamPriorityRange");
	*least = 0, *greatest = -5;
	return call.code;
}

} // extern "C"
