// Which implementation a processor runs, and the floating-point mode it needs.

#define _GNU_SOURCE // for syscall
#include "tdm_kernels.h"
#include "tdm_scalar.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

unsigned tdm_flush_enter(const tdm_kernels *k) {
	unsigned saved = _mm_getcsr();
	if (k->flushes)
		_mm_setcsr(saved | 0x8040); // FTZ and DAZ
	return saved;
}

void tdm_flush_leave(unsigned saved) { _mm_setcsr(saved); }

int tdm_vnni(void) { return __builtin_cpu_supports("avx512vnni") != 0; }

// Measured on Zen 4, whose cores read what lies in a row a third faster than four runs of
// it in turn; Zen 5 is taken to be like it. Those with AVX2 alone, and Intel's, are faster
// with four.
int tdm_one_stream(void) { return __builtin_cpu_is("amd") && tdm_vnni(); }

const char *tdm_int8_path(const tdm_kernels *k) {
	if (k->product_int8 == tdm_portable.product_int8)
		return "portable";
	if (k->product_int8 == tdm_avx512amx.product_int8)
		return "amx";
	return k->product_int8 == tdm_avx512_product_int8 && tdm_vnni() ? "vnni" : "avx2";
}

// tiles_allowed says whether this process may use AMX's tiles for int8. Linux has room
// for them, 8 KiB a thread, where a process asks for it; asking again changes nothing.
static int tiles_allowed(void) {
#if defined(__linux__)
	enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, TILES = 1 << 24, TILES_INT8 = 1 << 25 };
	unsigned a, b, c, d;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & TILES) || !(d & TILES_INT8))
		return 0;
	return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
	return 0;
#endif
}

const tdm_kernels *tdm_kernels_at(int i, int *usable) {
	__builtin_cpu_init();
	int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
	int bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
	int slow = __builtin_cpu_is("intel"); // vdpbf16ps has half the rate of multiply-adds
	switch (i) {
	case 0:
		*usable = bf16 && tdm_vnni() && tiles_allowed();
		return &tdm_avx512amx;
	case 1:
		*usable = bf16;
		return slow ? &tdm_avx512mixed : &tdm_avx512bf16;
	case 2:
		*usable = bf16;
		return slow ? &tdm_avx512bf16 : &tdm_avx512mixed;
	case 3:
		*usable = avx512;
		return &tdm_avx512;
	case 4:
		*usable = avx2;
		return &tdm_avx2;
	case 5:
		*usable = 1;
		return &tdm_portable;
	}
	return NULL;
}
#else
unsigned tdm_flush_enter(const tdm_kernels *k) {
	(void)k;
	return 0;
}

void tdm_flush_leave(unsigned saved) { (void)saved; }

const char *tdm_int8_path(const tdm_kernels *k) { return k->name; }

int tdm_one_stream(void) { return 0; }

const tdm_kernels *tdm_kernels_at(int i, int *usable) {
	*usable = 1;
	return i == 0 ? &tdm_portable : NULL;
}
#endif

int tdm_attention_positions(int heads, int kv_heads) {
	int group = heads / kv_heads;
	return group < TDM_ATTENTION_ROWS ? TDM_ATTENTION_ROWS / group : 1;
}

size_t tdm_attention_scratch(int heads, int kv_heads, int head_size) {
	size_t rows = (size_t)tdm_attention_positions(heads, kv_heads) * (size_t)(heads / kv_heads);
	size_t floats = rows * (TDM_SPLIT + TDM_SPLIT / 2 + 2 * (size_t)head_size + 2);
	return (floats + 15) / 16 * 16; // threads share no cache line
}

size_t tdm_attention_result(int rows, int head_size) {
	return ((size_t)rows * ((size_t)head_size + 2) + 15) / 16 * 16;
}
