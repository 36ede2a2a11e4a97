// How the C of package driver calls the driver.
#ifndef TDM_CALL_H
#define TDM_CALL_H

#include "tdm_driver.h"

// TDM_CALL returns from the calling function if the driver's function fails.
#define TDM_CALL(driver, name, ...)                                 \
	do {                                                            \
		const CUresult code_ = (driver)->name(__VA_ARGS__);         \
		if (code_ != CUDA_SUCCESS)                                  \
			return (tdm_outcome){.call = #name, .code = code_, .op = -1}; \
	} while (0)

#define TDM_DONE ((tdm_outcome){.op = -1})
#define TDM_MADE(handle) ((tdm_outcome){.made = (handle), .op = -1})

// TDM_ENTER makes the device's context current.
#define TDM_ENTER(v) TDM_CALL((v)->driver, cuCtxSetCurrent, (v)->context)

#endif
