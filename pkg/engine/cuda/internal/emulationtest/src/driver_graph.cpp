// Graphs: what one stream captured, in its order. Streams that join a capture through
// events are refused (see event_op).

#include "driver.h"

using namespace fake;

extern "C" {

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
	InContext call("cuStreamBeginCapture_v2");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (!state().streams.count(stream))
		return refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream");
	if (mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL || stream->capturing)
		return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "captures here are thread-local, and one at a time");
	stream->capturing = true;
	stream->capturer = std::this_thread::get_id();
	stream->captured.clear();
	return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
	InContext call("cuStreamEndCapture");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (!state().streams.count(stream) || !stream->capturing)
		return refuse(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the stream is not capturing");
	if (stream->capturer != std::this_thread::get_id())
		return refuse(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "another thread began the capture");
	stream->capturing = false;
	*graph = new CUgraph_st;
	(*graph)->context = call.context;
	(*graph)->ops.swap(stream->captured);
	state().graphs.insert(*graph);
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
	InContext call("cuGraphInstantiateWithFlags");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (!state().graphs.count(graph) || flags != 0)
		return refuse(CUDA_ERROR_INVALID_VALUE, "no such graph, or flags");
	*exec = new CUgraphExec_st;
	(*exec)->context = call.context;
	(*exec)->ops = graph->ops;
	state().execs.insert(*exec);
	return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
	InContext call("cuGraphDestroy");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (!state().graphs.erase(graph))
		return refuse(CUDA_ERROR_INVALID_VALUE, "no such graph");
	delete graph;
	return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
	InContext call("cuGraphExecDestroy");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (!state().execs.erase(exec))
		return refuse(CUDA_ERROR_INVALID_VALUE, "no such graph");
	delete exec;
	return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
	InContext call("cuGraphLaunch");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (!state().execs.count(exec) || !state().streams.count(stream))
		return refuse(CUDA_ERROR_INVALID_HANDLE, "no such graph or stream");
	if (stream->capturing)
		return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a graph within a graph");
	for (const Op &op : exec->ops) {
		if (op.event && !state().events.count(op.event))
			return refuse(CUDA_ERROR_INVALID_HANDLE, "the graph names an event that is gone");
	}
	for (const Op &op : exec->ops)
		append(stream, op);
	return CUDA_SUCCESS;
}

} // extern "C"
