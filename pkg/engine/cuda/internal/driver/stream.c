// Streams and events.

#include "tdm_call.h"

tdm_outcome tdm_stream_open(const tdm_device *v, int level, int levels) {
	TDM_ENTER(v);
	int least, greatest;
	TDM_CALL(v->driver, cuCtxGetStreamPriorityRange, &least, &greatest);
	CUstream stream;
	TDM_CALL(v->driver, cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, least + (greatest - least) * level / (levels - 1));
	return TDM_MADE(stream);
}

tdm_outcome tdm_stream_close(const tdm_device *v, CUstream stream) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuStreamDestroy_v2, stream);
	return TDM_DONE;
}

tdm_outcome tdm_stream_synchronize(const tdm_device *v, CUstream stream) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuStreamSynchronize, stream);
	return TDM_DONE;
}

tdm_outcome tdm_event_open(const tdm_device *v, int timing) {
	TDM_ENTER(v);
	CUevent event;
	TDM_CALL(v->driver, cuEventCreate, &event, timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
	return TDM_MADE(event);
}

tdm_outcome tdm_event_close(const tdm_device *v, CUevent event) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuEventDestroy_v2, event);
	return TDM_DONE;
}

tdm_outcome tdm_event_synchronize(const tdm_device *v, CUevent event) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuEventSynchronize, event);
	return TDM_DONE;
}

tdm_outcome tdm_event_elapsed(const tdm_device *v, CUevent start, CUevent end, float *milliseconds) {
	TDM_ENTER(v);
	TDM_CALL(v->driver, cuEventElapsedTime, milliseconds, start, end);
	return TDM_DONE;
}
