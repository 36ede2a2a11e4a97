// NVML: events of the emulated devices, as a test raises them. It is stricter than the real
// one: what is freed or ended twice is refused, and nothing works before a start.

#include "driver.h"

extern "C" {
#include "tdm_nvml_api.h"
}

#include <condition_variable>
#include <cstring>

using namespace fake;

struct nvmlDevice_st {
	std::string address;
};

struct nvmlEventSet_st {
	unsigned long long types = 0;
	std::deque<nvmlEventData_t> events;
};

namespace {

// Nvml has a lock of its own, since who waits for an event must not keep the driver from
// working. It is never taken while the driver's is held, but to count.
struct Nvml {
	std::mutex mutex;
	std::condition_variable raised;
	size_t starts = 0;
	std::set<nvmlEventSet_t> sets;
	std::map<std::string, std::unique_ptr<nvmlDevice_st>> devices; // by address
};

Nvml &nvml() {
	static Nvml *n = new Nvml; // never destroyed: a thread may wait until the end
	return *n;
}

// asked is the code that a test asked a function to give, and 0 otherwise.
nvmlReturn_t asked(const char *name) {
	const Call call(name);
	return call.asked ? call.code : NVML_SUCCESS;
}

// setting reads one of the driver's settings.
uint64_t setting(uint64_t State::*field) {
	std::lock_guard<std::mutex> lock(state().mutex);
	return state().*field;
}

// Begun is a call of a library that was started: it holds the lock.
struct Begun {
	nvmlReturn_t code;
	std::unique_lock<std::mutex> lock;
	explicit Begun(const char *name) : code(asked(name)), lock(nvml().mutex) {
		if (code == NVML_SUCCESS && nvml().starts == 0)
			code = NVML_ERROR_UNINITIALIZED;
	}
};

} // namespace

size_t fake::watches_live() {
	std::lock_guard<std::mutex> lock(nvml().mutex);
	return nvml().starts + nvml().sets.size();
}

extern "C" {

const char *nvmlErrorString(nvmlReturn_t code) {
	switch (code) {
	case NVML_ERROR_TIMEOUT:
		return "Timeout";
	case NVML_ERROR_GPU_IS_LOST:
		return "GPU is lost";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	}
	return code == 9 ? "Driver Not Loaded" : nullptr;
}

nvmlReturn_t nvmlInit_v2(void) {
	if (const nvmlReturn_t code = asked("nvmlInit_v2"))
		return code;
	std::lock_guard<std::mutex> lock(nvml().mutex);
	nvml().starts++;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) {
	Begun call("nvmlShutdown");
	if (call.code == NVML_SUCCESS)
		nvml().starts--;
	return call.code;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device) {
	const uint64_t devices = setting(&State::devices);
	Begun call("nvmlDeviceGetHandleByPciBusId_v2");
	if (call.code != NVML_SUCCESS)
		return call.code;
	for (uint64_t i = 0; i < devices; i++) {
		if (pci_address((int)i) != address)
			continue;
		std::unique_ptr<nvmlDevice_st> &known = nvml().devices[address];
		if (!known)
			known.reset(new nvmlDevice_st{address});
		*device = known.get();
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t, unsigned long long *types) {
	const uint64_t events = setting(&State::watched);
	Begun call("nvmlDeviceGetSupportedEventTypes");
	*types = events;
	return call.code;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
	Begun call("nvmlEventSetCreate");
	if (call.code == NVML_SUCCESS)
		nvml().sets.insert(*set = new nvmlEventSet_st);
	return call.code;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
	Begun call("nvmlEventSetFree");
	if (call.code != NVML_SUCCESS)
		return call.code;
	if (!nvml().sets.erase(set))
		return NVML_ERROR_INVALID_ARGUMENT;
	delete set;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t, unsigned long long types, nvmlEventSet_t set) {
	const uint64_t events = setting(&State::watched);
	Begun call("nvmlDeviceRegisterEvents");
	if (call.code != NVML_SUCCESS)
		return call.code;
	if (!nvml().sets.count(set))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (types & ~events)
		return NVML_ERROR_NOT_SUPPORTED;
	set->types |= types;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int milliseconds) {
	Begun call("nvmlEventSetWait_v2");
	if (call.code != NVML_SUCCESS)
		return call.code;
	if (!nvml().sets.count(set))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!nvml().raised.wait_for(call.lock, std::chrono::milliseconds(milliseconds), [&] { return !set->events.empty(); }))
		return NVML_ERROR_TIMEOUT;
	*data = set->events.front();
	set->events.pop_front();
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t, int type, int counter, unsigned long long *count) {
	const uint64_t corrected = setting(&State::corrected), uncorrected = setting(&State::uncorrected);
	Begun call("nvmlDeviceGetTotalEccErrors");
	if (call.code != NVML_SUCCESS)
		return call.code;
	if (counter != NVML_VOLATILE_ECC)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? corrected : uncorrected;
	return NVML_SUCCESS;
}

// Raises an event on every device, for all who await its type.
void tdm_fake_raise(unsigned long long type, unsigned long long data) {
	std::lock_guard<std::mutex> lock(nvml().mutex);
	for (nvmlEventSet_t set : nvml().sets)
		if (set->types & type)
			set->events.push_back({nullptr, type, data, 0xffffffffu, 0xffffffffu});
	nvml().raised.notify_all();
}

} // extern "C"
