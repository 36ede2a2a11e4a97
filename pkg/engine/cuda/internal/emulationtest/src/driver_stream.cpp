// Streams and events, copies and fills.

#include "driver.h"

using namespace fake;

namespace {

// StreamCall is a call about a stream.
struct StreamCall : InContext {
	StreamCall(const char *name, CUstream stream) : InContext(name) {
		if (code == CUDA_SUCCESS && !state().streams.count(stream))
			code = refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream");
	}
};

// EventCall is a call about an event.
struct EventCall : InContext {
	EventCall(const char *name, CUevent event) : InContext(name) {
		if (code == CUDA_SUCCESS && !state().events.count(event))
			code = refuse(CUDA_ERROR_INVALID_HANDLE, "no such event");
	}
};

bool reached(CUevent event) { return !event->mark || event->mark->reached; }

CUresult transfer(const char *name, Kind kind, uintptr_t to, uintptr_t from, size_t bytes, unsigned char value, CUstream stream) {
	InContext call(name);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	Op op;
	op.kind = kind, op.to = to, op.from = from, op.bytes = bytes, op.value = value;
	std::string why;
	if (!covers_op(op, &why))
		return refuse(CUDA_ERROR_INVALID_VALUE, why);
	return enqueue(call.context, stream, op);
}

// most_pitch is what devices have for CU_DEVICE_ATTRIBUTE_MAX_PITCH.
const size_t most_pitch = 0x7fffffff;

// allocated_pitch divides what cuMemAllocPitch gives: copies within a device may fail for
// other pitches.
const size_t allocated_pitch = 512;

// rectangle is the operation of a copy of rows.
CUresult rectangle(const CUDA_MEMCPY2D &r, Op *op) {
	const bool from_host = r.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = r.dstMemoryType == CU_MEMORYTYPE_HOST;
	if ((!from_host && r.srcMemoryType != CU_MEMORYTYPE_DEVICE) || (!to_host && r.dstMemoryType != CU_MEMORYTYPE_DEVICE) || (from_host && to_host))
		return refuse(CUDA_ERROR_INVALID_VALUE, "rows go from device memory or to it");
	if (r.srcXInBytes || r.srcY || r.dstXInBytes || r.dstY || r.WidthInBytes == 0 || r.Height == 0)
		return refuse(CUDA_ERROR_INVALID_VALUE, "rows here begin at the address, and are some");
	if (r.srcPitch < r.WidthInBytes || r.dstPitch < r.WidthInBytes || r.srcPitch > most_pitch || r.dstPitch > most_pitch)
		return refuse(CUDA_ERROR_INVALID_VALUE, "rows are as far apart as they are long at least, and 2 GiB less a byte at most");
	if (!from_host && !to_host && (r.srcPitch % allocated_pitch || r.dstPitch % allocated_pitch))
		return refuse(CUDA_ERROR_INVALID_VALUE, "rows within a device are as far apart as cuMemAllocPitch would have them");
	op->kind = from_host ? Kind::copy_in : to_host ? Kind::copy_out : Kind::copy;
	op->from = from_host ? reinterpret_cast<uintptr_t>(r.srcHost) : (uintptr_t)r.srcDevice;
	op->to = to_host ? reinterpret_cast<uintptr_t>(r.dstHost) : (uintptr_t)r.dstDevice;
	op->bytes = r.WidthInBytes, op->rows = r.Height, op->to_pitch = r.dstPitch, op->from_pitch = r.srcPitch;
	return CUDA_SUCCESS;
}

} // namespace

CUresult fake::enqueue(CUcontext context, CUstream stream, const Op &op) {
	if (!state().streams.count(stream) || stream->context != context)
		return refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream in this context");
	stream->launched = op.kind == Kind::launch;
	if (stream->capturing)
		stream->captured.push_back(op);
	else
		append(stream, op);
	return CUDA_SUCCESS;
}

void fake::append(CUstream stream, Op op) {
	// In a graph an event is named; which recording is meant is known only now.
	if (op.event)
		op.mark = op.event->mark = std::make_shared<Mark>();
	op.event = nullptr;
	stream->queue.push_back(std::move(op));
}

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
	InContext call("cuStreamCreateWithPriority");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (flags != CU_STREAM_NON_BLOCKING || priority > 0 || priority < -5)
		return refuse(CUDA_ERROR_INVALID_VALUE, "streams here are non-blocking and of priority 0 to -5");
	*stream = new CUstream_st;
	(*stream)->context = call.context;
	(*stream)->priority = priority;
	state().streams.insert(*stream);
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
	StreamCall call("cuStreamDestroy_v2", stream);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (const CUresult code = run_until(call.context, [stream] { return stream->queue.empty(); }))
		return code;
	state().streams.erase(stream);
	delete stream;
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
	StreamCall call("cuStreamSynchronize", stream);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (stream->capturing)
		return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream that is capturing cannot be waited for");
	return run_until(call.context, [stream] { return stream->queue.empty(); });
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
	InContext call("cuEventCreate");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (flags & ~3u)
		return refuse(CUDA_ERROR_INVALID_VALUE, "unknown flags of an event");
	*event = new CUevent_st;
	(*event)->context = call.context;
	(*event)->timing = !(flags & CU_EVENT_DISABLE_TIMING);
	state().events.insert(*event);
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
	EventCall call("cuEventDestroy_v2", event);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	state().events.erase(event);
	delete event;
	return CUDA_SUCCESS;
}

// With CU_EVENT_RECORD_EXTERNAL it acts on the event when a graph is launched; without, a graph could
// only order its own operations, which streams here do.
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
	EventCall call("cuEventRecordWithFlags", event);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (!state().streams.count(stream))
		return refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream");
	if (stream->capturing != (flags == CU_EVENT_RECORD_EXTERNAL))
		return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "events are external in a capture, and only there");
	Op op;
	op.kind = Kind::record, op.event = event;
	return enqueue(call.context, stream, op);
}

CUresult cuEventSynchronize(CUevent event) {
	EventCall call("cuEventSynchronize", event);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	return run_until(call.context, [event] { return reached(event); });
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
	EventCall call("cuEventElapsedTime", start);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (!state().events.count(end) || !start->timing || !end->timing || !start->mark || !end->mark)
		return refuse(CUDA_ERROR_INVALID_HANDLE, "both events must keep time and be recorded");
	if (!reached(start) || !reached(end))
		return refuse(CUDA_ERROR_NOT_READY, "both events must be reached");
	*milliseconds = std::chrono::duration<float, std::milli>(end->mark->when - start->mark->when).count();
	return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
	return transfer("cuMemcpyHtoDAsync_v2", Kind::copy_in, to, reinterpret_cast<uintptr_t>(from), bytes, 0, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
	return transfer("cuMemcpyDtoHAsync_v2", Kind::copy_out, reinterpret_cast<uintptr_t>(to), from, bytes, 0, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
	return transfer("cuMemcpyDtoDAsync_v2", Kind::copy, to, from, bytes, 0, stream);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *r, CUstream stream) {
	InContext call("cuMemcpy2DAsync_v2");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	Op op;
	if (const CUresult code = rectangle(*r, &op))
		return code;
	std::string why;
	if (!covers_op(op, &why))
		return refuse(CUDA_ERROR_INVALID_VALUE, why);
	return enqueue(call.context, stream, op);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
	return transfer("cuMemsetD8Async", Kind::fill, to, 0, bytes, value, stream);
}

} // extern "C"
