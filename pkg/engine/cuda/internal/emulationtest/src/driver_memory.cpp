// Memory: of the device and pinned, both host memory with zones around it.

#include "driver.h"

#include <cstring>
#include <sys/mman.h>

using namespace fake;

namespace {

const size_t page = 4096;
const size_t zone = page;         // bytes of 0xff before the data, and at least as many after it
const size_t beyond = 1u << 20;   // bytes at both ends that fault
const size_t near = 256;          // bytes of a zone that are looked at after each kernel
const size_t most_freed = 64 << 20; // bytes of freed memory that are kept, to find late writes

size_t round_up(size_t n) { return (n + page - 1) / page * page; }

bool untouched(const char *at, size_t bytes) {
	for (size_t i = 0; i < bytes; i++)
		if (at[i] != '\xff')
			return false;
	return true;
}

// acquire maps memory; data is null where the system has none.
Memory acquire(size_t bytes, CUcontext context, bool pinned) {
	Memory m;
	m.context = context, m.pinned = pinned, m.bytes = bytes;
	const size_t inner = zone + round_up(bytes + zone);
	m.mapped = inner + 2 * beyond;
	void *mapping = mmap(nullptr, m.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mapping == MAP_FAILED)
		return m;
	m.mapping = static_cast<char *>(mapping);
	char *start = m.mapping + beyond;
	if (mprotect(start, inner, PROT_READ | PROT_WRITE) != 0) {
		munmap(mapping, m.mapped);
		return m;
	}
	std::memset(start, 0xff, inner);
	m.data = start + zone;
	m.zone = inner - zone - bytes;
	return m;
}

bool zones_untouched(const Memory &m, size_t bytes) {
	return m.registered || (untouched(m.data - bytes, bytes) && untouched(m.data + m.bytes, bytes < m.zone ? bytes : m.zone));
}

std::string describe(const Memory &m) {
	return (m.pinned ? "pinned memory of " : "device memory of ") + std::to_string(m.bytes) + " bytes";
}

// retire poisons freed memory and keeps it a while.
void retire(const Memory &m) {
	State &s = state();
	std::memset(m.data, 0xff, m.bytes);
	s.freed.push_back(m);
	size_t kept = 0;
	for (const Memory &f : s.freed)
		kept += f.bytes;
	while (kept > most_freed) {
		kept -= s.freed.front().bytes;
		munmap(s.freed.front().mapping, s.freed.front().mapped);
		s.freed.pop_front();
	}
}

CUresult release(CUcontext context, uintptr_t address, bool pinned) {
	State &s = state();
	auto found = s.memory.find(address);
	if (found == s.memory.end() || found->second.pinned != pinned || found->second.registered)
		return refuse(CUDA_ERROR_INVALID_VALUE, "what is freed was not allocated, or was freed before");
	if (const CUresult code = run_all(context))
		return code;
	const Memory m = found->second;
	s.memory.erase(found);
	if (!pinned)
		m.context->used -= m.bytes;
	const bool held = zones_untouched(m, m.zone < zone ? m.zone : zone);
	retire(m);
	if (!held)
		return lose(context, CUDA_ERROR_ILLEGAL_ADDRESS, "something was written beside " + describe(m));
	return CUDA_SUCCESS;
}

} // namespace

bool fake::covers(uintptr_t address, size_t bytes, bool pinned) {
	const auto &memory = state().memory;
	auto after = memory.upper_bound(address);
	if (after == memory.begin())
		return false;
	const Memory &m = std::prev(after)->second;
	const uintptr_t begin = std::prev(after)->first;
	return m.pinned == pinned && address - begin <= m.bytes && bytes <= m.bytes - (address - begin);
}

bool fake::covers_op(const Op &op, std::string *why) {
	for (size_t row = 0; row < op.rows; row++) {
		if (!covers(op.to + row * op.to_pitch, op.bytes, op.kind == Kind::copy_out)) {
			*why = "what is written is not within one allocation of the right kind";
			return false;
		}
		if (op.kind != Kind::fill && !covers(op.from + row * op.from_pitch, op.bytes, op.kind == Kind::copy_in)) {
			*why = "what is read is not within one allocation of the right kind";
			return false;
		}
	}
	return true;
}

bool fake::zones_hold(CUcontext context, std::string *why) {
	for (const auto &entry : state().memory) {
		if (entry.second.context == context && !zones_untouched(entry.second, near)) {
			*why = "wrote beside " + describe(entry.second);
			return false;
		}
	}
	for (const Memory &m : state().freed) {
		if (m.context == context && !untouched(m.data, m.bytes < near ? m.bytes : near)) {
			*why = "wrote to freed " + describe(m);
			return false;
		}
	}
	return true;
}

void fake::forget_memory(CUcontext context) {
	State &s = state();
	for (auto it = s.memory.begin(); it != s.memory.end();) {
		if (it->second.context == context) {
			if (!it->second.registered)
				munmap(it->second.mapping, it->second.mapped);
			it = s.memory.erase(it);
		} else {
			++it;
		}
	}
	for (auto it = s.freed.begin(); it != s.freed.end();) {
		if (it->context == context) {
			munmap(it->mapping, it->mapped);
			it = s.freed.erase(it);
		} else {
			++it;
		}
	}
}

extern "C" {

CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
	InContext call("cuMemGetInfo_v2");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	*total = state().total;
	*available = call.context->used < *total ? *total - call.context->used : 0;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
	InContext call("cuMemAlloc_v2");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (bytes == 0)
		return refuse(CUDA_ERROR_INVALID_VALUE, "an allocation of nothing");
	State &s = state();
	if (call.context->used > s.total || bytes > s.total - call.context->used)
		return refuse(CUDA_ERROR_OUT_OF_MEMORY, "the emulated device has no more memory");
	const Memory m = acquire(bytes, call.context, false);
	if (!m.data)
		return refuse(CUDA_ERROR_OUT_OF_MEMORY, "this machine has no more memory for the emulated device");
	call.context->used += bytes;
	*address = reinterpret_cast<uintptr_t>(m.data);
	s.memory[*address] = m;
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
	InContext call("cuMemFree_v2");
	return call.code != CUDA_SUCCESS ? call.code : release(call.context, address, false);
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
	InContext call("cuMemHostAlloc");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (bytes == 0 || (flags & ~7u) != 0)
		return refuse(CUDA_ERROR_INVALID_VALUE, "pinned memory of no size, or with unknown flags");
	const Memory m = acquire(bytes, call.context, true);
	if (!m.data)
		return refuse(CUDA_ERROR_OUT_OF_MEMORY, "this machine has no more memory to pin");
	*memory = m.data;
	state().memory[reinterpret_cast<uintptr_t>(m.data)] = m;
	return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *memory) {
	InContext call("cuMemFreeHost");
	return call.code != CUDA_SUCCESS ? call.code : release(call.context, reinterpret_cast<uintptr_t>(memory), true);
}

CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) {
	InContext call("cuMemHostRegister_v2");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	if (!memory || bytes == 0 || (flags & ~15u) != 0)
		return refuse(CUDA_ERROR_INVALID_VALUE, "memory to pin of no size, or with unknown flags");
	auto &all = state().memory;
	const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
	const auto after = all.lower_bound(begin + bytes);
	if (after != all.begin() && std::prev(after)->first + std::prev(after)->second.bytes > begin)
		return refuse(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "some of the memory is pinned, or the device's");
	Memory m;
	m.context = call.context, m.pinned = m.registered = true, m.bytes = bytes, m.data = static_cast<char *>(memory);
	all[begin] = m;
	return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *memory) {
	InContext call("cuMemHostUnregister");
	if (call.code != CUDA_SUCCESS)
		return call.code;
	auto &all = state().memory;
	const auto found = all.find(reinterpret_cast<uintptr_t>(memory));
	if (found == all.end() || !found->second.registered)
		return refuse(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the memory was not pinned, or was unpinned before");
	all.erase(found);
	return CUDA_SUCCESS;
}

} // extern "C"
