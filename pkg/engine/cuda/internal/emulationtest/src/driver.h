// A driver library that needs no GPU. It is opened like libcuda.so.1 and does what the
// engine asks of one, in host memory, with the kernels run by the emulation. It is stricter
// than a driver where a mistake could go unnoticed on one:
//
//   - Streams run nothing until somebody waits, and then one operation at a time, of a
//     stream drawn at random: where nobody waits that should, wrong data shows under some seed.
//   - Copies and fills must lie in one live allocation, host sides in pinned memory, when
//     they are enqueued and when they run. Unpinning memory waits for nothing.
//   - Memory begins and ends as bytes of 0xff, NaN to every float type, and has zones of
//     them on both sides: a kernel that writes there loses the device.
//
// One lock guards everything (Call takes it), so kernels run under it, one at a time.
#ifndef TDM_FAKE_DRIVER_H
#define TDM_FAKE_DRIVER_H

#include "tdm_driver_api.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace fake {

// most_shared is the most dynamic shared memory of a block, in bytes: an H200's.
const int most_shared = 227 << 10;

// A kernel that can be run. run is null for those of the emulation.
struct Kernel {
	std::string name;
	size_t arguments = 0; // bytes of its struct
	int (*run)(const unsigned grid[3], const unsigned block[3], const void *arguments) = nullptr;
	unsigned threads = 1024; // most of a block
};

// find_kernel gives false where no kernel has the name.
bool find_kernel(const std::string &name, Kernel *kernel);
// run_kernel gives 0, or not, with the reason in why.
int run_kernel(const Kernel &kernel, const unsigned grid[3], const unsigned block[3], unsigned shared,
	const void *arguments, std::string *why);

// One recording of an event.
struct Mark {
	bool reached = false;
	std::chrono::steady_clock::time_point when;
};

enum class Kind { launch, copy_in, copy_out, copy, fill, record, work };

struct Op {
	Kind kind = Kind::launch;
	Kernel kernel;
	unsigned grid[3] = {}, block[3] = {}, shared = 0;
	std::shared_ptr<std::vector<char>> arguments;
	uintptr_t to = 0, from = 0;
	size_t bytes = 0;               // of a row of a copy
	size_t rows = 1;                // of a copy
	size_t to_pitch = 0, from_pitch = 0;
	unsigned char value = 0;
	std::shared_ptr<Mark> mark; // of a record
	CUevent event = nullptr;    // in a graph: whose mark it becomes at launch
	std::function<CUresult(CUcontext)> work; // of another library
};

// An allocation and the zones around it.
struct Memory {
	char *mapping = nullptr, *data = nullptr;
	size_t mapped = 0, bytes = 0, zone = 0; // zone: bytes of it after the data
	CUcontext context = nullptr;
	bool pinned = false;
	bool registered = false; // pinned memory of somebody else, without zones
};

struct Failure {
	std::string call;
	int after;
	CUresult code;
};

// What was copied since the last reset: bytes that came in, went out, and moved within
// device memory, and how many copies that were.
struct Copied {
	long long in = 0, out = 0, within = 0, copies = 0;
};

struct State {
	std::mutex mutex;
	Copied copied;
	bool started = false;
	uint64_t version, devices, total, capability, seed, cublaslt;
	std::mt19937_64 random;
	std::vector<Failure> failures;
	CUresult refused = CUDA_SUCCESS; // the code of the last refusal
	std::string why;                 // and its reason
	std::vector<std::unique_ptr<CUctx_st>> contexts; // by device
	std::map<uintptr_t, Memory> memory;              // by its first byte
	std::deque<Memory> freed;
	std::set<CUmodule> modules;
	std::set<CUfunction> functions;
	std::set<CUstream> streams;
	std::set<CUevent> events;
	std::set<CUgraph> graphs;
	std::set<CUgraphExec> execs;
	// Of NVML, see nvml.cpp: the types of events that devices have, and errors of memory.
	uint64_t watched, corrected, uncorrected;
	State();
	// configure takes the settings of TANDEM_FAKE_CUDA over the defaults.
	void configure();
	bool set(const std::string &name, uint64_t value);
};

State &state();

// refuse keeps why a call is refused and gives the code.
CUresult refuse(CUresult code, const std::string &why);

// Call is one call of the library: it holds the lock, and code is what to return at once.
struct Call {
	std::lock_guard<std::mutex> lock;
	CUresult code;
	CUcontext context = nullptr; // the current one, of an InContext
	bool asked = false;          // a test asked for code
	explicit Call(const char *name);
};
// InContext is a call that needs a current context that is not lost.
struct InContext : Call {
	explicit InContext(const char *name);
};

// current is the context of the calling thread.
CUcontext &current();
// gone gives the code of a lost context, or CUDA_SUCCESS.
CUresult gone(CUcontext context);
// lose makes every later call in the context give code.
CUresult lose(CUcontext context, CUresult code, const std::string &why);
// pci_address is where a device is on the bus.
std::string pci_address(int ordinal);
// destroy drops all that belongs to a context.
void destroy(CUcontext context);

// covers says whether one live allocation of the kind holds all the bytes.
bool covers(uintptr_t address, size_t bytes, bool pinned);
// covers_op is covers for both sides of a copy, every row of them, or for what a fill fills.
bool covers_op(const Op &op, std::string *why);
// zones_hold says whether the zones of every allocation are untouched near the data.
bool zones_hold(CUcontext context, std::string *why);
void forget_memory(CUcontext context);

// enqueue checks an operation and appends it to a stream or to what the stream captures.
CUresult enqueue(CUcontext context, CUstream stream, const Op &op);
// append is enqueue for what is checked already.
void append(CUstream stream, Op op);
// run_until runs operations of all streams until done() or nothing is left.
template <class Done> CUresult run_until(CUcontext context, Done done);
bool run_one();
CUresult run_all(CUcontext context);

// products_live counts what is alive of cuBLASLt, which is in the same library: see
// blaslt.cpp.
size_t products_live();
// watches_live counts what is alive of NVML, which is in the same library too: see nvml.cpp.
size_t watches_live();

} // namespace fake

struct CUctx_st {
	int ordinal = 0, references = 0;
	CUresult lost = CUDA_SUCCESS;
	std::string why; // it is lost
	size_t used = 0;
};

struct CUmod_st {
	CUcontext context;
	std::map<std::string, CUfunction> functions;
};

struct CUfunc_st {
	CUcontext context;
	fake::Kernel kernel;
	int shared = 48 << 10; // most bytes of dynamic shared memory
};

struct CUstream_st {
	CUcontext context;
	int priority = 0;
	std::deque<fake::Op> queue;
	bool launched = false; // the last operation was a launch
	bool capturing = false;
	std::thread::id capturer;
	std::vector<fake::Op> captured;
};

struct CUevent_st {
	CUcontext context;
	bool timing;
	std::shared_ptr<fake::Mark> mark; // of the last recording
};

struct CUgraph_st {
	CUcontext context;
	std::vector<fake::Op> ops;
};

struct CUgraphExec_st {
	CUcontext context;
	std::vector<fake::Op> ops;
};

template <class Done> CUresult fake::run_until(CUcontext context, Done done) {
	while (!done()) {
		if (!run_one())
			return refuse(CUDA_ERROR_UNKNOWN, "nothing is left to run");
		if (const CUresult code = gone(context))
			return code;
	}
	return CUDA_SUCCESS;
}

#endif
