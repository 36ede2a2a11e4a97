// Modules: PTX is read for the names and the arguments of its kernels, which the emulation
// has under the same names.

#include "driver.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <regex>

using namespace fake;

namespace {

// Log is where the caller wants to hear of errors, in the words of a compiler, which are
// two lines at least.
struct Log {
	char *at = nullptr;
	size_t bytes = 0;
	CUresult say(CUresult code, const std::string &why) const {
		if (at && bytes)
			std::snprintf(at, bytes, "ptxas application ptx input, line 1; fatal   : %s\nptxas fatal   : Ptx assembly aborted due to errors\n", why.c_str());
		return refuse(code, why);
	}
};

Log find_log(unsigned count, const int *options, void **values) {
	Log log;
	for (unsigned i = 0; i < count; i++) {
		if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
			log.at = static_cast<char *>(values[i]);
		if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
			log.bytes = reinterpret_cast<uintptr_t>(values[i]);
	}
	return log;
}

// An entry of PTX: a name, what stands between its parentheses, and from there to its body.
struct Entry {
	std::string name, parameters, directives;
};

std::vector<Entry> entries(const std::string &ptx) {
	std::vector<Entry> found;
	const std::string word = ".visible .entry ";
	for (size_t at = ptx.find(word); at != std::string::npos; at = ptx.find(word, at)) {
		at += word.size();
		const size_t open = ptx.find('(', at), close = ptx.find(')', at);
		if (open == std::string::npos || close == std::string::npos)
			break;
		Entry e;
		e.name = ptx.substr(at, open - at);
		e.name.erase(e.name.find_last_not_of(" \t\r\n") + 1);
		e.parameters = ptx.substr(open + 1, close - open - 1);
		e.directives = ptx.substr(close + 1, ptx.find('{', close) - close - 1);
		found.push_back(e);
	}
	return found;
}

// one_struct says whether the parameters are a struct of so many bytes and nothing else.
bool one_struct(const std::string &parameters, size_t bytes) {
	static const std::regex shape("\\s*\\.param\\s+\\.align\\s+[0-9]+\\s+\\.b8\\s+[A-Za-z0-9_$]+\\[([0-9]+)\\]\\s*");
	std::smatch match;
	return std::regex_match(parameters, match, shape) && std::stoull(match[1]) == bytes;
}

// most_threads is how many threads of a block the directives allow.
unsigned most_threads(const std::string &directives) {
	static const std::regex shape("\\.maxntid\\s+([0-9]+)");
	std::smatch match;
	return std::regex_search(directives, match, shape) ? (unsigned)std::stoul(match[1]) : 1024;
}

CUresult load(CUcontext context, const std::string &ptx, const Log &log, CUmodule *module) {
	std::smatch target;
	if (ptx.find(".version") == std::string::npos || !std::regex_search(ptx, target, std::regex("\\.target\\s+sm_([0-9]+)(a?)")))
		return log.say(CUDA_ERROR_INVALID_PTX, "no PTX: .version or .target is missing");
	const bool alone = target[2].length() > 0; // for that generation and no later one
	if (std::stoull(target[1]) > state().capability || (alone && std::stoull(target[1]) != state().capability))
		return log.say(CUDA_ERROR_NO_BINARY_FOR_GPU, "PTX for sm_" + target[1].str() + target[2].str() + ", which this device is not");
	const std::vector<Entry> found = entries(ptx);
	if (found.empty())
		return log.say(CUDA_ERROR_INVALID_PTX, "there is no kernel in it");
	std::map<std::string, Kernel> kernels;
	for (const Entry &e : found) {
		Kernel k;
		if (!find_kernel(e.name, &k))
			return log.say(CUDA_ERROR_INVALID_PTX, "kernel " + e.name + " cannot be emulated: build it into the library");
		if (!one_struct(e.parameters, k.arguments))
			return log.say(CUDA_ERROR_INVALID_PTX, "kernel " + e.name + " takes other arguments than its emulation, one struct of " +
				std::to_string(k.arguments) + " bytes: compile both from the same source");
		k.threads = most_threads(e.directives);
		kernels[e.name] = k;
	}
	*module = new CUmod_st;
	(*module)->context = context;
	for (const auto &entry : kernels) {
		CUfunction f = new CUfunc_st;
		f->context = context, f->kernel = entry.second;
		(*module)->functions[entry.first] = f;
		state().functions.insert(f);
	}
	state().modules.insert(*module);
	return CUDA_SUCCESS;
}

// Compiling counts the calls that compile. The first one of a process brings the compiler,
// which takes a while, and others beside it do not find it.
struct Compiling {
	static std::atomic<int> calls;
	static std::atomic<bool> ready;
	const bool alone;
	Compiling() : alone(calls++ == 0 || ready) {
		if (!ready)
			std::this_thread::sleep_for(std::chrono::milliseconds(50));
	}
	~Compiling() { calls--; }
};
std::atomic<int> Compiling::calls;
std::atomic<bool> Compiling::ready;

// FunctionCall is a call about a function.
struct FunctionCall : InContext {
	FunctionCall(const char *name, CUfunction function) : InContext(name) {
		if (code == CUDA_SUCCESS && !state().functions.count(function))
			code = refuse(CUDA_ERROR_INVALID_HANDLE, "no such function, or its module is unloaded");
	}
};

} // namespace

// launch enqueues a launch, whose attributes were looked at.
static CUresult launch(CUcontext context, CUfunction function, const CUlaunchConfig &config, void **params, void **extra) {
	if (extra || !params)
		return refuse(CUDA_ERROR_INVALID_VALUE, "arguments come through params here");
	const unsigned long long threads = (unsigned long long)config.blockDimX * config.blockDimY * config.blockDimZ;
	if (threads < 1 || threads > 1024 || config.blockDimZ > 64)
		return refuse(CUDA_ERROR_INVALID_VALUE, "a block of no threads, or of more than 1024");
	if (threads > function->kernel.threads)
		return refuse(CUDA_ERROR_INVALID_VALUE, "a block of more threads than " + function->kernel.name + " was compiled for");
	if (!config.gridDimX || !config.gridDimY || !config.gridDimZ || config.gridDimX > 2147483647u || config.gridDimY > 65535 || config.gridDimZ > 65535)
		return refuse(CUDA_ERROR_INVALID_VALUE, "a grid of no blocks, or with more than 65535 in y or z");
	if (config.sharedMemBytes > (unsigned)function->shared)
		return refuse(CUDA_ERROR_INVALID_VALUE, "a launch of " + function->kernel.name + " with " + std::to_string(config.sharedMemBytes) +
			" bytes of shared memory, and it is allowed " + std::to_string(function->shared));
	Op op;
	op.kind = Kind::launch;
	op.kernel = function->kernel;
	op.grid[0] = config.gridDimX, op.grid[1] = config.gridDimY, op.grid[2] = config.gridDimZ;
	op.block[0] = config.blockDimX, op.block[1] = config.blockDimY, op.block[2] = config.blockDimZ;
	op.shared = config.sharedMemBytes;
	const char *arguments = static_cast<const char *>(params[0]);
	op.arguments = std::make_shared<std::vector<char>>(arguments, arguments + function->kernel.arguments);
	return enqueue(context, config.hStream, op);
}

extern "C" {

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
	const Compiling compiling;
	InContext call("cuModuleLoadDataEx");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (!compiling.alone)
		return refuse(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "the first module of a process is loaded beside others");
	Compiling::ready = true;
	return load(call.context, static_cast<const char *>(image), find_log(count, options, values), module);
}

CUresult cuModuleUnload(CUmodule module) {
	InContext call("cuModuleUnload");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	State &s = state();
	if (!s.modules.erase(module))
		return refuse(CUDA_ERROR_INVALID_HANDLE, "no such module");
	for (const auto &entry : module->functions) {
		s.functions.erase(entry.second);
		delete entry.second;
	}
	delete module;
	return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
	InContext call("cuModuleGetFunction");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (!state().modules.count(module))
		return refuse(CUDA_ERROR_INVALID_HANDLE, "no such module");
	auto found = module->functions.find(name);
	if (found == module->functions.end())
		return refuse(CUDA_ERROR_NOT_FOUND, std::string("the module has no ") + name);
	*function = found->second;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
	FunctionCall call("cuFuncGetAttribute", function);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (attribute == CU_FUNC_ATTRIBUTE_NUM_REGS)
		*value = 32;
	else if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
		*value = function->shared;
	else
		return refuse(CUDA_ERROR_INVALID_VALUE, "unknown attribute of a function");
	return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
	FunctionCall call("cuFuncSetAttribute", function);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && value >= 0 && value <= 100)
		return CUDA_SUCCESS;
	if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > most_shared)
		return refuse(CUDA_ERROR_INVALID_VALUE, "more shared memory than a block can have, or another attribute");
	function->shared = value;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
	FunctionCall call("cuFuncGetParamInfo", function);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (index > 0)
		return refuse(CUDA_ERROR_INVALID_VALUE, "a kernel has one parameter");
	*offset = 0, *bytes = function->kernel.arguments;
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block, size_t shared) {
	FunctionCall call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (block < 1 || block > 1024)
		return refuse(CUDA_ERROR_INVALID_VALUE, "a block of no threads, or of more than 1024");
	const size_t by_shared = shared ? (size_t)most_shared / shared : 32;
	const size_t by_threads = 2048 / (size_t)block;
	*blocks = (int)(by_shared < by_threads ? by_shared : by_threads);
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
	unsigned block_z, unsigned shared, CUstream stream, void **params, void **extra) {
	FunctionCall call("cuLaunchKernel", function);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	return launch(call.context, function, {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, nullptr, 0}, params, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
	FunctionCall call("cuLaunchKernelEx", function);
	if (call.code != CUDA_SUCCESS)
		return call.code;
	for (unsigned i = 0; i < config->numAttrs; i++) {
		const CUlaunchAttribute &attribute = config->attrs[i];
		if (attribute.id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION || attribute.value.programmaticStreamSerializationAllowed != 1)
			return refuse(CUDA_ERROR_INVALID_VALUE, "an attribute of a launch that is not known here");
		if (state().capability < 90)
			return refuse(CUDA_ERROR_NOT_SUPPORTED, "launches begin early from capability 9.0 on");
		if (!state().streams.count(config->hStream) || !config->hStream->launched)
			return refuse(CUDA_ERROR_INVALID_VALUE, "a launch may begin early behind another launch only");
	}
	return launch(call.context, function, *config, params, extra);
}

} // extern "C"
