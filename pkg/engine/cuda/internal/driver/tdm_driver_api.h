// What the engine uses of the CUDA driver API, 12.0 and later: types, values and the
// symbols to look up. The values are part of the driver's binary interface and do not
// change. A symbol with _v2 is the one that current headers mean by the plain name.
#ifndef TDM_DRIVER_API_H
#define TDM_DRIVER_API_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

// CUmemorytype, of the two sides of a CUDA_MEMCPY2D.
typedef enum CUmemorytype {
	CU_MEMORYTYPE_HOST = 1,
	CU_MEMORYTYPE_DEVICE = 2,
} CUmemorytype;

// A rectangle of bytes to copy: Height rows of WidthInBytes, those of each side its pitch
// apart. Arrays are not used here.
typedef struct CUDA_MEMCPY2D {
	size_t srcXInBytes, srcY;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	void *srcArray;
	size_t srcPitch;
	size_t dstXInBytes, dstY;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	void *dstArray;
	size_t dstPitch;
	size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

// CUresult
enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_STUB_LIBRARY = 34,
	CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
	CUDA_ERROR_ECC_UNCORRECTABLE = 214,
	CUDA_ERROR_INVALID_PTX = 218,
	CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
	CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
	CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
	CUDA_ERROR_CONTAINED = 226,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_LAUNCH_TIMEOUT = 702,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_ASSERT = 710,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
	CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
	CUDA_ERROR_MISALIGNED_ADDRESS = 716,
	CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
	CUDA_ERROR_INVALID_PC = 718,
	CUDA_ERROR_LAUNCH_FAILED = 719,
	CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_SYSTEM_NOT_READY = 802,
	CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
	CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
	CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
	CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
	CUDA_ERROR_EXTERNAL_DEVICE = 911,
	CUDA_ERROR_UNKNOWN = 999,
};

// CUdevice_attribute
enum {
	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
	CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
};

// CUfunction_attribute
enum {
	CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
	CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
	CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9, // percent
};

// CUjit_option
enum {
	CU_JIT_ERROR_LOG_BUFFER = 5,
	CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
};

// CUlaunchAttributeID
enum {
	CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};

// One attribute of a launch; of the values only that of the one above is used here.
typedef struct CUlaunchAttribute {
	int id;
	char pad[4];
	union {
		char bytes[64];
		int programmaticStreamSerializationAllowed;
	} value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	CUstream hStream;
	CUlaunchAttribute *attrs;
	unsigned numAttrs;
} CUlaunchConfig;

// Flags.
enum {
	CU_STREAM_NON_BLOCKING = 1,
	CU_EVENT_DEFAULT = 0,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_EVENT_RECORD_DEFAULT = 0,
	CU_EVENT_RECORD_EXTERNAL = 1,
	CU_MEMHOSTALLOC_PORTABLE = 1,
	CU_MEMHOSTREGISTER_PORTABLE = 1,
	CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
};

// TDM_DRIVER_CALLS names what every driver since 12.0 has, with its parameters.
#define TDM_DRIVER_CALLS(X)                                                                       \
	X(cuInit, (unsigned flags))                                                                   \
	X(cuDriverGetVersion, (int *version))                                                         \
	X(cuGetErrorName, (CUresult code, const char **name))                                         \
	X(cuGetErrorString, (CUresult code, const char **text))                                       \
	X(cuDeviceGetCount, (int *count))                                                             \
	X(cuDeviceGet, (CUdevice * device, int ordinal))                                              \
	X(cuDeviceGetName, (char *name, int size, CUdevice device))                                   \
	X(cuDeviceGetPCIBusId, (char *id, int size, CUdevice device))                                 \
	X(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                                     \
	X(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))                         \
	X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                           \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                            \
	X(cuCtxSetCurrent, (CUcontext context))                                                       \
	X(cuMemGetInfo_v2, (size_t * available, size_t * total))                                      \
	X(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                                       \
	X(cuMemFree_v2, (CUdeviceptr address))                                                        \
	X(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                              \
	X(cuMemFreeHost, (void *memory))                                                              \
	X(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags))                         \
	X(cuMemHostUnregister, (void *memory))                                                        \
	X(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))    \
	X(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))          \
	X(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))    \
	X(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *rectangle, CUstream stream))                      \
	X(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream))      \
	X(cuModuleLoadDataEx, (CUmodule * module, const void *image, unsigned count, int *options, void **values)) \
	X(cuModuleUnload, (CUmodule module))                                                          \
	X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))            \
	X(cuFuncGetAttribute, (int *value, int attribute, CUfunction function))                       \
	X(cuFuncSetAttribute, (CUfunction function, int attribute, int value))                        \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, CUfunction function, int block, size_t shared)) \
	X(cuLaunchKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
		unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **params, void **extra)) \
	X(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **params, void **extra)) \
	X(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority))              \
	X(cuCtxGetStreamPriorityRange, (int *least, int *greatest))                                   \
	X(cuStreamDestroy_v2, (CUstream stream))                                                      \
	X(cuStreamSynchronize, (CUstream stream))                                                     \
	X(cuStreamBeginCapture_v2, (CUstream stream, int mode))                                       \
	X(cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                     \
	X(cuEventCreate, (CUevent * event, unsigned flags))                                           \
	X(cuEventDestroy_v2, (CUevent event))                                                         \
	X(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags))                   \
	X(cuEventSynchronize, (CUevent event))                                                        \
	X(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end))                      \
	X(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) \
	X(cuGraphDestroy, (CUgraph graph))                                                            \
	X(cuGraphExecDestroy, (CUgraphExec exec))                                                     \
	X(cuGraphLaunch, (CUgraphExec exec, CUstream stream))

// TDM_DRIVER_NEWER_CALLS names what is used where the driver has it.
#define TDM_DRIVER_NEWER_CALLS(X)                                                                \
	X(cuFuncGetParamInfo, (CUfunction function, size_t index, size_t *offset, size_t *bytes)) /* 12.4 */

#endif
