// What the processor can reach at most, by loops that do nothing else.
#ifndef TDM_LIMITS_H
#define TDM_LIMITS_H

#include "tdm_kernels.h"

enum { TDM_PEAK_VARIANTS = 3, TDM_READ_VARIANTS = 8 };

// tdm_limit_peak runs multiply-adds for `rounds` rounds on each of `threads` threads
// and returns the FLOPs done on all. Variants differ in the instruction, of those
// that the implementation may use, and in how many sums are independent.
double tdm_limit_peak(tdm_pool *pool, int threads, const tdm_kernels *k, int variant, long rounds);
// tdm_limit_read reads all of memory once, in parts by thread, and returns the
// bytes read. Variants differ in streams, in how far these are apart, and in prefetch
// distance. bytes is a multiple of 1 MiB times threads, memory is page-aligned.
double tdm_limit_read(tdm_pool *pool, int threads, const uint8_t *memory, size_t bytes, int variant);
// tdm_limit_barrier has `threads` threads meet at the pool's barrier `rounds` times.
void tdm_limit_barrier(tdm_pool *pool, int threads, long rounds);
// tdm_limit_touch writes memory, so that it is there.
void tdm_limit_touch(uint8_t *memory, size_t bytes);

#endif
