// Contract of the C of package nvml. Nothing here keeps a pointer beyond a call, but for
// what a tdm_nvml has.
#ifndef TDM_NVML_H
#define TDM_NVML_H

#include "tdm_nvml_api.h"

// A library and a device of it whose events are awaited. All zeros before it is opened.
typedef struct tdm_nvml {
	void *library;
	nvmlDevice_t device;
	nvmlEventSet_t set;
	const char *(*nvmlErrorString)(nvmlReturn_t code);
#define TDM_FIELD(name, parameters) nvmlReturn_t(*name) parameters;
	TDM_NVML_CALLS(TDM_FIELD)
#undef TDM_FIELD
} tdm_nvml;

// What tdm_nvml_open found.
enum {
	TDM_NVML_OPENED,
	TDM_NVML_NO_LIBRARY, // text is the loader's message
	TDM_NVML_NO_SYMBOL,  // text is the symbol
	TDM_NVML_FAILED,     // call gave code
	TDM_NVML_NO_EVENTS,  // the device reports none of those that are wanted
};

// How a call went: call is the library's function that gave code, where that is no success.
typedef struct tdm_nvml_outcome {
	const char *call;
	nvmlReturn_t code;
} tdm_nvml_outcome;

typedef struct tdm_nvml_opening {
	int found;
	tdm_nvml_outcome outcome;
	char text[512];
} tdm_nvml_opening;

// Opens the library and the device at a PCI address, such as 0000:3b:00.0, and awaits its
// events from now on. After a failure everything is as before, and text says why.
tdm_nvml_opening tdm_nvml_open(const char *library, const char *address, tdm_nvml *nvml);

// An event: the type, and the number of an Xid.
typedef struct tdm_nvml_event {
	unsigned long long type, xid;
} tdm_nvml_event;

// Waits for an event for so long at most: NVML_ERROR_TIMEOUT if there is none. One thread at
// a time.
tdm_nvml_outcome tdm_nvml_wait(const tdm_nvml *nvml, unsigned int milliseconds, tdm_nvml_event *event);

// Counts errors of memory since the driver was loaded.
tdm_nvml_outcome tdm_nvml_errors(const tdm_nvml *nvml, unsigned long long *corrected, unsigned long long *uncorrected);

// Ends what tdm_nvml_open began. Nothing may wait then.
tdm_nvml_outcome tdm_nvml_close(tdm_nvml *nvml);

// What the library says of a code, never null.
const char *tdm_nvml_text(const tdm_nvml *nvml, nvmlReturn_t code);

#endif
