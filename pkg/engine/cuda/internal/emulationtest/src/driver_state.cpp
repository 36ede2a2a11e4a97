// The state of the driver, its settings, and how every call begins.

#include "driver.h"

#include <cstdlib>
#include <sstream>

namespace fake {

State &state() {
	static State *s = new State; // never destroyed: threads may call until the end
	return *s;
}

State::State() { configure(); }

bool State::set(const std::string &name, uint64_t value) {
	if (name == "version")
		version = value;
	else if (name == "devices")
		devices = value;
	else if (name == "memory")
		total = value;
	else if (name == "capability")
		capability = value;
	else if (name == "seed")
		random.seed(seed = value);
	else if (name == "cublaslt")
		cublaslt = value;
	else if (name == "events")
		watched = value;
	else if (name == "corrected")
		corrected = value;
	else if (name == "uncorrected")
		uncorrected = value;
	else
		return false;
	return true;
}

void State::configure() {
	version = 12040, devices = 1, total = 256ull << 20, capability = 90, seed = 1, cublaslt = 120405;
	watched = 0xb, corrected = uncorrected = 0;
	random.seed(seed);
	const char *settings = std::getenv("TANDEM_FAKE_CUDA");
	std::istringstream words(settings ? settings : "");
	for (std::string word; std::getline(words, word, ',');) {
		const size_t at = word.find('=');
		if (at != std::string::npos)
			set(word.substr(0, at), std::strtoull(word.c_str() + at + 1, nullptr, 10));
	}
}

CUresult refuse(CUresult code, const std::string &why) {
	state().refused = code;
	state().why = why;
	return code;
}

CUcontext &current() {
	thread_local CUcontext context = nullptr;
	return context;
}

// sticky says whether an error is the end of its context.
static bool sticky(CUresult code) {
	switch (code) {
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
		return true;
	}
	return false;
}

CUresult gone(CUcontext context) {
	return context->lost == CUDA_SUCCESS ? CUDA_SUCCESS : refuse(context->lost, context->why);
}

CUresult lose(CUcontext context, CUresult code, const std::string &why) {
	context->lost = code, context->why = why;
	return refuse(code, why);
}

Call::Call(const char *name) : lock(state().mutex), code(CUDA_SUCCESS) {
	State &s = state();
	for (size_t i = 0; i < s.failures.size(); i++) {
		Failure &f = s.failures[i];
		if (f.call != name || f.after-- > 0)
			continue;
		code = f.code, asked = true;
		s.failures.erase(s.failures.begin() + (long)i);
		(void)refuse(code, std::string("a test asked ") + name + " to fail");
		if (sticky(code) && current())
			(void)lose(current(), code, s.why);
		return;
	}
}

InContext::InContext(const char *name) : Call(name) {
	if (code != CUDA_SUCCESS)
		return;
	context = current();
	if (!state().started)
		code = refuse(CUDA_ERROR_NOT_INITIALIZED, "cuInit comes first");
	else if (!context || context->references == 0)
		code = refuse(CUDA_ERROR_INVALID_CONTEXT, "no context is current");
	else
		code = gone(context);
}

template <class Set> static void drop(Set &set, CUcontext context) {
	for (auto it = set.begin(); it != set.end();) {
		if ((*it)->context == context) {
			delete *it;
			it = set.erase(it);
		} else {
			++it;
		}
	}
}

void destroy(CUcontext context) {
	State &s = state();
	drop(s.streams, context);
	drop(s.events, context);
	drop(s.graphs, context);
	drop(s.execs, context);
	drop(s.functions, context);
	drop(s.modules, context);
	forget_memory(context);
	context->used = 0;
	context->lost = CUDA_SUCCESS;
}

} // namespace fake
