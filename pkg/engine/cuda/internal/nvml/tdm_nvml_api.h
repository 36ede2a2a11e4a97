// NVIDIA's management library (NVML), as far as the engine needs it: what its public header
// nvml.h of CUDA 11 and later says, under the same names.
#ifndef TDM_NVML_API_H
#define TDM_NVML_API_H

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_GPU_IS_LOST = 15,
};

// Types of events, which a mask has.
enum {
	nvmlEventTypeSingleBitEccError = 0x1,
	nvmlEventTypeDoubleBitEccError = 0x2,
	nvmlEventTypeXidCriticalError = 0x8,
};

// nvmlMemoryErrorType_t and nvmlEccCounterType_t. Volatile counts begin when the driver is
// loaded.
enum { NVML_MEMORY_ERROR_TYPE_CORRECTED = 0, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1 };
enum { NVML_VOLATILE_ECC = 0 };

// What nvmlEventSetWait_v2 fills: eventData is the Xid of an Xid event, 999 if that is not
// known, and 0 of others. The two instances are those of a divided GPU (MIG).
typedef struct nvmlEventData_st {
	nvmlDevice_t device;
	unsigned long long eventType, eventData;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

#define TDM_NVML_CALLS(X)                                                                                  \
	X(nvmlInit_v2, (void))                                                                                 \
	X(nvmlShutdown, (void))                                                                                \
	X(nvmlDeviceGetHandleByPciBusId_v2, (const char *address, nvmlDevice_t *device))                       \
	X(nvmlDeviceGetSupportedEventTypes, (nvmlDevice_t device, unsigned long long *types))                  \
	X(nvmlDeviceRegisterEvents, (nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set))       \
	X(nvmlEventSetCreate, (nvmlEventSet_t * set))                                                          \
	X(nvmlEventSetWait_v2, (nvmlEventSet_t set, nvmlEventData_t * data, unsigned int milliseconds))        \
	X(nvmlEventSetFree, (nvmlEventSet_t set))                                                              \
	X(nvmlDeviceGetTotalEccErrors, (nvmlDevice_t device, int type, int counter, unsigned long long *count))

#endif
