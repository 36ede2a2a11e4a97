// Memory outside the Go heap and the C heap: weights and pages are large, live
// long, and profit from huge pages.

#define _GNU_SOURCE
#include "tdm_kernels.h"

#include <sys/mman.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

void *tdm_allocate(size_t bytes) {
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
#ifdef MADV_HUGEPAGE
	if (bytes >= 4u << 20)
		(void)madvise(p, bytes, MADV_HUGEPAGE); // only a hint
#endif
	return p;
}

void tdm_release(void *memory, size_t bytes) {
	if (memory)
		(void)munmap(memory, bytes);
}
