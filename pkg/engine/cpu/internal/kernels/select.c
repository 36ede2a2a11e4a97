// Which implementation a processor runs, and the floating-point mode it needs.

#include "tdm_kernels.h"
#include "tdm_scalar.h"

#if defined(__x86_64__)
#include <immintrin.h>

unsigned tdm_flush_enter(void) {
	unsigned saved = _mm_getcsr();
	_mm_setcsr(saved | 0x8040); // FTZ and DAZ
	return saved;
}

void tdm_flush_leave(unsigned saved) { _mm_setcsr(saved); }

int tdm_vnni(void) { return __builtin_cpu_supports("avx512vnni") != 0; }

const char *tdm_int8_path(const tdm_kernels *k) {
	if (k->product_int8 == tdm_portable.product_int8)
		return "portable";
	return k->product_int8 == tdm_avx512_product_int8 && tdm_vnni() ? "vnni" : "avx2";
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
		*usable = bf16;
		return slow ? &tdm_avx512mixed : &tdm_avx512bf16;
	case 1:
		*usable = bf16;
		return slow ? &tdm_avx512bf16 : &tdm_avx512mixed;
	case 2:
		*usable = avx512;
		return &tdm_avx512;
	case 3:
		*usable = avx2;
		return &tdm_avx2;
	case 4:
		*usable = 1;
		return &tdm_portable;
	}
	return NULL;
}
#else
unsigned tdm_flush_enter(void) { return 0; }

void tdm_flush_leave(unsigned saved) { (void)saved; }

const char *tdm_int8_path(const tdm_kernels *k) { return k->name; }

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
