// Devices and their memory.

#include "tdm_call.h"

tdm_outcome tdm_device_count(const tdm_driver *driver, int *count) {
	TDM_CALL(driver, cuDeviceGetCount, count);
	return TDM_DONE;
}

tdm_outcome tdm_device_info(const tdm_driver *driver, int ordinal, tdm_info *info) {
	CUdevice device;
	TDM_CALL(driver, cuDeviceGet, &device, ordinal);
	TDM_CALL(driver, cuDeviceGetName, info->name, (int)sizeof info->name, device);
	TDM_CALL(driver, cuDeviceGetPCIBusId, info->pci, (int)sizeof info->pci, device);
	TDM_CALL(driver, cuDeviceTotalMem_v2, &info->memory, device);
	int major, minor;
	TDM_CALL(driver, cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
	TDM_CALL(driver, cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
	info->capability = 10 * major + minor;
	TDM_CALL(driver, cuDeviceGetAttribute, &info->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
	TDM_CALL(driver, cuDeviceGetAttribute, &info->shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
	return TDM_DONE;
}

tdm_outcome tdm_device_open(const tdm_driver *driver, int ordinal, tdm_device *v) {
	v->driver = driver;
	TDM_CALL(driver, cuDeviceGet, &v->device, ordinal);
	TDM_CALL(driver, cuDevicePrimaryCtxRetain, &v->context, v->device);
	return TDM_DONE;
}

tdm_outcome tdm_device_close(const tdm_device *v) {
	TDM_CALL(v->driver, cuDevicePrimaryCtxRelease_v2, v->device);
	return TDM_DONE;
}

tdm_outcome tdm_device_enter(const tdm_device *v) {
	TDM_ENTER(v);
	return TDM_DONE;
}

tdm_outcome tdm_memory_info(const tdm_device *v, size_t *available, size_t *total) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuMemGetInfo_v2, available, total);
	return TDM_DONE;
}

tdm_outcome tdm_device_allocate(const tdm_device *v, size_t bytes, CUdeviceptr *address) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuMemAlloc_v2, address, bytes);
	return TDM_DONE;
}

tdm_outcome tdm_device_free(const tdm_device *v, CUdeviceptr address) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuMemFree_v2, address);
	return TDM_DONE;
}

tdm_outcome tdm_allocate_host(const tdm_device *v, size_t bytes) {
	TDM_ENTER(v);
	void *memory;
	TDM_CALL(v->driver, cuMemHostAlloc, &memory, bytes, CU_MEMHOSTALLOC_PORTABLE);
	return TDM_MADE(memory);
}

tdm_outcome tdm_free_host(const tdm_device *v, void *memory) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuMemFreeHost, memory);
	return TDM_DONE;
}

tdm_outcome tdm_register_host(const tdm_device *v, void *memory, size_t bytes) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuMemHostRegister_v2, memory, bytes, CU_MEMHOSTREGISTER_PORTABLE);
	return TDM_DONE;
}

tdm_outcome tdm_unregister_host(const tdm_device *v, void *memory) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuMemHostUnregister, memory);
	return TDM_DONE;
}
