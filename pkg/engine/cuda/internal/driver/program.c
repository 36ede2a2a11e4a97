// Programs: what a stream does, enqueued or captured in one call.

#define _POSIX_C_SOURCE 200809L // clock_gettime

#include "tdm_call.h"

#include <time.h>

_Static_assert(sizeof(tdm_op) == 64, "arguments behind an operation must be aligned to 16");

static void *pointer(uint64_t handle) { return (void *)(uintptr_t)handle; }

static tdm_outcome launch(const tdm_driver *d, CUstream stream, const tdm_op *op) {
	// The driver copies the arguments before it returns; its interface knows no const.
	void *params[] = {(void *)(uintptr_t)(op + 1)};
	if (op->value) {
		CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
		early.value.programmaticStreamSerializationAllowed = 1;
		const CUlaunchConfig config = {
			.gridDimX = op->grid[0], .gridDimY = op->grid[1], .gridDimZ = op->grid[2], .blockDimX = op->block, .blockDimY = 1, .blockDimZ = 1,
			.sharedMemBytes = op->shared, .hStream = stream, .attrs = &early, .numAttrs = 1,
		};
		TDM_CALL(d, cuLaunchKernelEx, &config, (CUfunction)pointer(op->handle), params, NULL);
		return TDM_DONE;
	}
	TDM_CALL(d, cuLaunchKernel, (CUfunction)pointer(op->handle), op->grid[0], op->grid[1], op->grid[2], op->block, 1, 1,
		op->shared, stream, params, NULL);
	return TDM_DONE;
}

// For rows within the device, of which cuMemcpy2DAsync may refuse pitches that are not
// cuMemAllocPitch's.
static tdm_outcome copy_row_by_row(const tdm_driver *d, CUstream stream, const tdm_op *op) {
	for (uint64_t row = 0; row < op->grid[0]; row++)
		TDM_CALL(d, cuMemcpyDtoDAsync_v2, op->to + row * op->grid[1], op->from + row * op->grid[2], op->bytes, stream);
	return TDM_DONE;
}

static tdm_outcome copy_rows(const tdm_driver *d, CUstream stream, const tdm_op *op) {
	CUDA_MEMCPY2D r = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = op->from, .srcPitch = op->grid[2],
		.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = op->to, .dstPitch = op->grid[1],
		.WidthInBytes = op->bytes, .Height = op->grid[0],
	};
	if (op->handle && !op->from)
		r.srcMemoryType = CU_MEMORYTYPE_HOST, r.srcHost = pointer(op->handle);
	else if (op->handle)
		r.dstMemoryType = CU_MEMORYTYPE_HOST, r.dstHost = pointer(op->handle);
	const CUresult code = d->cuMemcpy2DAsync_v2(&r, stream);
	if (code == CUDA_ERROR_INVALID_VALUE && !op->handle)
		return copy_row_by_row(d, stream, op);
	return (tdm_outcome){.call = "cuMemcpy2DAsync_v2", .code = code, .op = -1};
}

// record_flags are how events are recorded.
static tdm_outcome enqueue(const tdm_driver *d, CUstream stream, const tdm_op *op, unsigned record_flags) {
	switch (op->kind) {
	case TDM_LAUNCH:
		return launch(d, stream, op);
	case TDM_COPY_IN:
		TDM_CALL(d, cuMemcpyHtoDAsync_v2, op->to, pointer(op->handle), op->bytes, stream);
		break;
	case TDM_COPY_OUT:
		TDM_CALL(d, cuMemcpyDtoHAsync_v2, pointer(op->handle), op->from, op->bytes, stream);
		break;
	case TDM_COPY:
		TDM_CALL(d, cuMemcpyDtoDAsync_v2, op->to, op->from, op->bytes, stream);
		break;
	case TDM_COPY_ROWS:
		return copy_rows(d, stream, op);
	case TDM_FILL:
		TDM_CALL(d, cuMemsetD8Async, op->to, (unsigned char)op->value, op->bytes, stream);
		break;
	case TDM_RECORD:
		TDM_CALL(d, cuEventRecordWithFlags, (CUevent)pointer(op->handle), stream, record_flags);
		break;
	case TDM_GRAPH:
		TDM_CALL(d, cuGraphLaunch, (CUgraphExec)pointer(op->handle), stream);
		break;
	case TDM_FOREIGN:
		return (tdm_outcome){.code = ((tdm_foreign)(uintptr_t)op->handle)(op + 1, stream), .op = -1};
	}
	return TDM_DONE;
}

static tdm_outcome enqueue_all(const tdm_driver *d, CUstream stream, const void *ops, size_t bytes, unsigned record_flags) {
	const char *at = ops, *end = at + bytes;
	for (int i = 0; at < end; i++) {
		const tdm_op *op = (const tdm_op *)at;
		tdm_outcome outcome = enqueue(d, stream, op, record_flags);
		if (outcome.code != CUDA_SUCCESS) {
			outcome.op = i;
			return outcome;
		}
		at += op->size;
	}
	return TDM_DONE;
}

static int64_t nanoseconds(void) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

tdm_outcome tdm_submit(const tdm_device *v, CUstream stream, const void *ops, size_t bytes, int wait) {
	TDM_ENTER(v);
	const tdm_outcome outcome = enqueue_all(v->driver, stream, ops, bytes, CU_EVENT_RECORD_DEFAULT);
	if (outcome.code != CUDA_SUCCESS)
		return outcome;
	tdm_outcome done = TDM_DONE;
	if (wait) {
		const int64_t began = nanoseconds();
		TDM_CALL(v->driver, cuStreamSynchronize, stream);
		done.waited = nanoseconds() - began;
	}
	return done;
}

static tdm_outcome instantiate(const tdm_driver *d, CUgraph captured) {
	CUgraphExec graph;
	TDM_CALL(d, cuGraphInstantiateWithFlags, &graph, captured, 0);
	return TDM_MADE(graph);
}

tdm_outcome tdm_capture(const tdm_device *v, CUstream stream, const void *ops, size_t bytes) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	tdm_outcome outcome = enqueue_all(v->driver, stream, ops, bytes, CU_EVENT_RECORD_EXTERNAL);
	CUgraph captured = NULL;
	if (outcome.code != CUDA_SUCCESS) {
		// Leaves the capture. That it fails too adds nothing to what went wrong first.
		if (v->driver->cuStreamEndCapture(stream, &captured) == CUDA_SUCCESS && captured)
			(void)v->driver->cuGraphDestroy(captured);
		return outcome;
	}
	TDM_CALL(v->driver, cuStreamEndCapture, stream, &captured);
	outcome = instantiate(v->driver, captured);
	(void)v->driver->cuGraphDestroy(captured); // the instance has its own copy
	return outcome;
}

tdm_outcome tdm_graph_close(const tdm_device *v, CUgraphExec graph) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuGraphExecDestroy, graph);
	return TDM_DONE;
}
