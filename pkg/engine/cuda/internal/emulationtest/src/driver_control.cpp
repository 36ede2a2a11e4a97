// What a test asks of the driver beside the driver's own interface. Package emulation finds
// these by name.

#include "driver.h"

using namespace fake;

extern "C" {

// Takes settings as they are at the start, and drops the failures that did not happen yet.
void tdm_fake_reset(void) {
	std::lock_guard<std::mutex> lock(state().mutex);
	state().failures.clear();
	state().why.clear();
	state().copied = Copied();
	state().configure();
}

// Sets version, devices, memory (bytes), capability, seed, cublaslt, events, corrected or
// uncorrected. 0: there is no such setting.
int tdm_fake_set(const char *name, unsigned long long value) {
	std::lock_guard<std::mutex> lock(state().mutex);
	return state().set(name, value);
}

// Makes a function fail once with code, after so many calls that do not.
void tdm_fake_fail(const char *call, int after, int code) {
	std::lock_guard<std::mutex> lock(state().mutex);
	state().failures.push_back({call, after, code});
}

// Loses every device that is in use.
void tdm_fake_lose(int code) {
	std::lock_guard<std::mutex> lock(state().mutex);
	for (auto &context : state().contexts)
		if (context->references > 0)
			(void)lose(context.get(), code, "a test lost the device");
}

// Says what was copied since the last reset, and how many streams there are of priority
// 0 to -5.
void tdm_fake_seen(long long *counts) {
	std::lock_guard<std::mutex> lock(state().mutex);
	const Copied &c = state().copied;
	counts[0] = c.in, counts[1] = c.out, counts[2] = c.within, counts[3] = c.copies;
	for (int i = 0; i < 6; i++)
		counts[4 + i] = 0;
	for (CUstream stream : state().streams)
		counts[4 - stream->priority]++;
}

// Counts what is alive.
void tdm_fake_live(long long *counts) {
	std::lock_guard<std::mutex> lock(state().mutex);
	const State &s = state();
	for (int i = 0; i < 11; i++)
		counts[i] = 0;
	for (const auto &context : s.contexts)
		counts[0] += context->references;
	for (const auto &entry : s.memory) {
		counts[entry.second.pinned ? 3 : 1]++;
		if (!entry.second.pinned)
			counts[2] += (long long)entry.second.bytes;
	}
	counts[4] = (long long)s.modules.size();
	counts[5] = (long long)s.streams.size();
	counts[6] = (long long)s.events.size();
	counts[7] = (long long)(s.graphs.size() + s.execs.size());
	for (CUstream stream : s.streams)
		counts[8] += (long long)stream->queue.size();
	counts[9] = (long long)products_live();
	counts[10] = (long long)watches_live();
}

} // extern "C"
