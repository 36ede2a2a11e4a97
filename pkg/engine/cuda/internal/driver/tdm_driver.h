// Contract of the C of package driver. A tdm_driver is one opened library. Every function
// that takes a tdm_device makes the device's context current on the calling thread first,
// so that a caller may be on any thread, and on another one each time. Nothing here
// allocates from the C heap, except where it says so, and nothing keeps a pointer.
#ifndef TDM_DRIVER_H
#define TDM_DRIVER_H

#include "tdm_driver_api.h"

#include <stdint.h>

typedef struct tdm_driver {
	void *library;           // the loader's handle
	struct tdm_driver *next; // of those opened before
#define TDM_FIELD(name, parameters) CUresult(*name) parameters;
	TDM_DRIVER_CALLS(TDM_FIELD)
	TDM_DRIVER_NEWER_CALLS(TDM_FIELD) // may be null
#undef TDM_FIELD
} tdm_driver;

// How a call went: code is a CUresult, call the driver's function that gave it, op the
// number of the operation of a program, or -1. made is what was made, where something is.
// Where call is null the code is what another library's function returned.
typedef struct tdm_outcome {
	const char *call;
	void *made;
	int code;
	int op;
	int64_t waited; // nanoseconds for the stream; tdm_submit only
} tdm_outcome;

// What the driver says of a code; in memory that stays, never null.
typedef struct tdm_texts {
	const char *name, *text;
} tdm_texts;

// What tdm_open found.
enum {
	TDM_OPENED,
	TDM_NO_LIBRARY, // text is the loader's message
	TDM_NO_SYMBOL,  // text is the symbol
	TDM_NO_INIT,    // the outcome of cuInit or cuDriverGetVersion
	TDM_OLD_DRIVER, // version is below TDM_LEAST_VERSION
	TDM_NO_MEMORY,
};

enum { TDM_LEAST_VERSION = 12000 };

typedef struct tdm_opening {
	const tdm_driver *driver; // if it is opened
	int found;
	int version; // 1000*major + 10*minor
	tdm_outcome outcome;
	tdm_texts texts; // of the outcome
	char text[512];
} tdm_opening;

// Opens the library, which stays open to the end of the process, like the driver, of which
// a library has one.
tdm_opening tdm_open(const char *library);

tdm_texts tdm_error_texts(const tdm_driver *driver, int code);

typedef struct tdm_info {
	char name[256], pci[32];
	size_t memory;
	int capability, multiprocessors, shared;
} tdm_info;

tdm_outcome tdm_device_count(const tdm_driver *driver, int *count);
tdm_outcome tdm_device_info(const tdm_driver *driver, int ordinal, tdm_info *info);

typedef struct tdm_device {
	const tdm_driver *driver;
	CUcontext context; // the primary one
	CUdevice device;
} tdm_device;

tdm_outcome tdm_device_open(const tdm_driver *driver, int ordinal, tdm_device *device);
tdm_outcome tdm_device_close(const tdm_device *device);
// Makes the device's context current on the calling thread.
tdm_outcome tdm_device_enter(const tdm_device *device);

tdm_outcome tdm_memory_info(const tdm_device *device, size_t *available, size_t *total);
tdm_outcome tdm_device_allocate(const tdm_device *device, size_t bytes, CUdeviceptr *address);
tdm_outcome tdm_device_free(const tdm_device *device, CUdeviceptr address);
tdm_outcome tdm_allocate_host(const tdm_device *device, size_t bytes);
tdm_outcome tdm_free_host(const tdm_device *device, void *memory);
// Pins memory that the caller allocated, and unpins it: it stays the caller's.
tdm_outcome tdm_register_host(const tdm_device *device, void *memory, size_t bytes);
tdm_outcome tdm_unregister_host(const tdm_device *device, void *memory);

// ptx ends with a zero. log takes what the compiler said, ended by a zero.
tdm_outcome tdm_module_load(const tdm_device *device, const char *ptx, char *log, size_t log_bytes);
tdm_outcome tdm_module_unload(const tdm_device *device, CUmodule module);

typedef struct tdm_function {
	tdm_outcome outcome; // made is the function
	int64_t parameters;  // how many; -1 where the driver does not say
	int64_t bytes;       // of the first parameter
} tdm_function;

// Loads the function too, which the driver would otherwise put off until its first launch.
tdm_function tdm_module_function(const tdm_device *device, CUmodule module, const char *name);
tdm_outcome tdm_function_allow_shared(const tdm_device *device, CUfunction function, int bytes);
// Asks for as much shared memory as there is, and the least cache, while the function runs.
tdm_outcome tdm_function_prefer_shared(const tdm_device *device, CUfunction function);
tdm_outcome tdm_function_blocks(const tdm_device *device, CUfunction function, int block, size_t shared, int *blocks);

// Of priority level of levels, 0 to levels-1: 0 is the device's least, levels-1 its
// greatest, and those between lie evenly between them.
tdm_outcome tdm_stream_open(const tdm_device *device, int level, int levels);
tdm_outcome tdm_stream_close(const tdm_device *device, CUstream stream);
tdm_outcome tdm_stream_synchronize(const tdm_device *device, CUstream stream);

tdm_outcome tdm_event_open(const tdm_device *device, int timing);
tdm_outcome tdm_event_close(const tdm_device *device, CUevent event);
tdm_outcome tdm_event_synchronize(const tdm_device *device, CUevent event);
tdm_outcome tdm_event_elapsed(const tdm_device *device, CUevent start, CUevent end, float *milliseconds);

enum {
	TDM_LAUNCH,
	TDM_COPY_IN,
	TDM_COPY_OUT,
	TDM_COPY,
	TDM_COPY_ROWS, // grid: rows, and the pitches of to and of from; handle, where not 0: the host side
	TDM_FILL,
	TDM_RECORD,
	TDM_GRAPH,
	TDM_FOREIGN,
};

// A function of another library that puts work on the stream, of a TDM_FOREIGN operation:
// 0, or a code of its own. arguments are those behind the operation.
typedef int (*tdm_foreign)(const void *arguments, void *stream);

// One operation of a program. A program is operations in a row, the arguments of a launch
// or of a foreign function behind it. No field is a pointer: Go writes these over what was there before, and where it
// writes a pointer its collector looks at the old value, which may be anything.
typedef struct tdm_op {
	int32_t kind;
	uint32_t size;   // bytes from this operation to the next, a multiple of 16
	uint64_t handle; // function, event, graph or tdm_foreign; the host side of a copy in or out
	CUdeviceptr to, from;
	uint64_t bytes; // of a row, where there are rows
	uint32_t grid[3], block, shared;
	uint32_t value; // of a fill; of a launch: whether it may begin before the one before it ends
} tdm_op;

// Enqueues the operations in order, up to the first that fails, and with wait not 0 waits
// for the stream.
tdm_outcome tdm_submit(const tdm_device *device, CUstream stream, const void *ops, size_t bytes, int wait);
// Makes a graph of the operations. Records in it act on events as outside of it, at each launch.
tdm_outcome tdm_capture(const tdm_device *device, CUstream stream, const void *ops, size_t bytes);
tdm_outcome tdm_graph_close(const tdm_device *device, CUgraphExec graph);

#endif
