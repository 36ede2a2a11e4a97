#include "tdm_nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// find looks a symbol up in the library. POSIX lets an object pointer from dlsym stand for
// a function; memcpy says so without a cast that C does not define.
static int find(void *library, const char *symbol, void *field) {
	void *address = dlsym(library, symbol);
	memcpy(field, &address, sizeof address);
	return address != NULL;
}

static void fail(tdm_nvml_opening *opening, int found, const char *text) {
	opening->found = found;
	(void)snprintf(opening->text, sizeof opening->text, "%s", text);
}

// TDM_CALL returns from the calling function if the library's function fails.
#define TDM_CALL(nvml, name, ...)                              \
	do {                                                       \
		const nvmlReturn_t code_ = (nvml)->name(__VA_ARGS__);  \
		if (code_ != NVML_SUCCESS)                             \
			return (tdm_nvml_outcome){.call = #name, .code = code_}; \
	} while (0)

#define TDM_DONE ((tdm_nvml_outcome){.call = NULL})

// await registers those of the wanted events that the device has; none are none.
static tdm_nvml_outcome await(tdm_nvml *nvml, const char *address, int *none) {
	const unsigned long long wanted = nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError;
	unsigned long long has = 0;
	TDM_CALL(nvml, nvmlDeviceGetHandleByPciBusId_v2, address, &nvml->device);
	TDM_CALL(nvml, nvmlDeviceGetSupportedEventTypes, nvml->device, &has);
	*none = (has & wanted) == 0;
	if (*none)
		return TDM_DONE;
	TDM_CALL(nvml, nvmlEventSetCreate, &nvml->set);
	TDM_CALL(nvml, nvmlDeviceRegisterEvents, nvml->device, has & wanted, nvml->set);
	return TDM_DONE;
}

static void look(const char *library, const char *address, tdm_nvml *nvml, tdm_nvml_opening *opening) {
	nvml->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!nvml->library) {
		const char *text = dlerror();
		fail(opening, TDM_NVML_NO_LIBRARY, text ? text : library);
		return;
	}
	if (!find(nvml->library, "nvmlErrorString", &nvml->nvmlErrorString)) {
		fail(opening, TDM_NVML_NO_SYMBOL, "nvmlErrorString");
		return;
	}
#define TDM_FIND(name, parameters)                  \
	if (!find(nvml->library, #name, &nvml->name)) { \
		fail(opening, TDM_NVML_NO_SYMBOL, #name);   \
		return;                                     \
	}
	TDM_NVML_CALLS(TDM_FIND)
#undef TDM_FIND
	opening->outcome.code = nvml->nvmlInit_v2();
	if (opening->outcome.code != NVML_SUCCESS) {
		opening->outcome.call = "nvmlInit_v2";
		fail(opening, TDM_NVML_FAILED, tdm_nvml_text(nvml, opening->outcome.code));
		return;
	}
	int none = 0;
	opening->outcome = await(nvml, address, &none);
	if (opening->outcome.code != NVML_SUCCESS)
		fail(opening, TDM_NVML_FAILED, tdm_nvml_text(nvml, opening->outcome.code));
	else if (none)
		fail(opening, TDM_NVML_NO_EVENTS, "");
	if (opening->found != TDM_NVML_OPENED) {
		if (nvml->set)
			(void)nvml->nvmlEventSetFree(nvml->set);
		(void)nvml->nvmlShutdown();
	}
}

tdm_nvml_opening tdm_nvml_open(const char *library, const char *address, tdm_nvml *nvml) {
	tdm_nvml_opening opening = {.found = TDM_NVML_OPENED};
	look(library, address, nvml, &opening);
	if (opening.found != TDM_NVML_OPENED)
		*nvml = (tdm_nvml){.library = NULL}; // the library stays open: it may have threads
	return opening;
}

tdm_nvml_outcome tdm_nvml_wait(const tdm_nvml *nvml, unsigned int milliseconds, tdm_nvml_event *event) {
	nvmlEventData_t data = {.eventType = 0};
	TDM_CALL(nvml, nvmlEventSetWait_v2, nvml->set, &data, milliseconds);
	*event = (tdm_nvml_event){.type = data.eventType, .xid = data.eventData};
	return TDM_DONE;
}

tdm_nvml_outcome tdm_nvml_errors(const tdm_nvml *nvml, unsigned long long *corrected, unsigned long long *uncorrected) {
	*corrected = *uncorrected = 0;
	TDM_CALL(nvml, nvmlDeviceGetTotalEccErrors, nvml->device, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC, corrected);
	TDM_CALL(nvml, nvmlDeviceGetTotalEccErrors, nvml->device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, uncorrected);
	return TDM_DONE;
}

tdm_nvml_outcome tdm_nvml_close(tdm_nvml *nvml) {
	const nvmlReturn_t freed = nvml->nvmlEventSetFree(nvml->set);
	TDM_CALL(nvml, nvmlShutdown);
	if (freed != NVML_SUCCESS)
		return (tdm_nvml_outcome){.call = "nvmlEventSetFree", .code = freed};
	return TDM_DONE;
}

const char *tdm_nvml_text(const tdm_nvml *nvml, nvmlReturn_t code) {
	const char *text = nvml->nvmlErrorString(code);
	return text ? text : "no description";
}
