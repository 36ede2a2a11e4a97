// Memory outside the Go heap and the C heap: weights and pages are large, live
// long, and profit from huge pages.

#define _GNU_SOURCE
#include "tdm_kernels.h"

#include <sys/mman.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

#if TDM_GAP
#include <sanitizer/asan_interface.h>
#include <unistd.h>

// margin is what lies before and after the memory that is handed out.
static size_t margin(void) { return (size_t)sysconf(_SC_PAGESIZE); }

void tdm_forbid(void *memory, size_t bytes) { __asan_poison_memory_region(memory, bytes); }

// allow undoes tdm_forbid: the next that is mapped here must not inherit it.
static void allow(void *memory, size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
static size_t margin(void) { return 0; }

void tdm_forbid(void *memory, size_t bytes) { (void)memory, (void)bytes; }

static void allow(void *memory, size_t bytes) { (void)memory, (void)bytes; }
#endif

void *tdm_allocate(size_t bytes) {
	const size_t all = bytes + 2 * margin();
	uint8_t *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
#ifdef MADV_HUGEPAGE
	if (bytes >= 4u << 20)
		(void)madvise(p, all, MADV_HUGEPAGE); // only a hint
#endif
	tdm_forbid(p, margin());
	tdm_forbid(p + margin() + bytes, margin());
	return p + margin();
}

void tdm_release(void *memory, size_t bytes) {
	if (!memory)
		return;
	uint8_t *p = (uint8_t *)memory - margin();
	const size_t all = bytes + 2 * margin();
	allow(p, all);
	(void)munmap(p, all);
}
