// AVX2 and FMA: 16 lanes as two registers.
#if defined(__x86_64__)
#ifndef __clang__
#pragma GCC target("avx2,fma")
#endif

#include "tdm_int4.h"
#include "tdm_kernels.h"
#include "tdm_kv.h"
#include "tdm_quantize.h"
#include "tdm_scalar.h"
#include <immintrin.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#endif

typedef struct vec {
	__m256 a, b;
} vec;
typedef struct words {
	__m256i a, b;
} words;

#define VEC static inline __attribute__((always_inline, unused))
#define BOTH(op, x, y) (vec){op((x).a, (y).a), op((x).b, (y).b)}

VEC vec v_set1(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
VEC vec v_zero(void) { return v_set1(0); }
VEC vec v_load(const float *p) { return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
VEC void v_store(float *p, vec x) {
	_mm256_storeu_ps(p, x.a);
	_mm256_storeu_ps(p + 8, x.b);
}
VEC vec v_add(vec x, vec y) { return BOTH(_mm256_add_ps, x, y); }
VEC vec v_sub(vec x, vec y) { return BOTH(_mm256_sub_ps, x, y); }
VEC vec v_mul(vec x, vec y) { return BOTH(_mm256_mul_ps, x, y); }
VEC vec v_div(vec x, vec y) { return BOTH(_mm256_div_ps, x, y); }
VEC vec v_max(vec x, vec y) { return BOTH(_mm256_max_ps, x, y); }
VEC vec v_fma(vec x, vec y, vec z) {
	return (vec){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
// v_if_less is a < b ? x : y.
VEC vec v_if_less(vec a, vec b, vec x, vec y) {
	return (vec){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
		_mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
// lanes_below has all bits set in lanes below n.
VEC words lanes_below(int n) {
	const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
	return (words){_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane), _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane)};
}
// v_first keeps the first n lanes of x and takes the others from y.
VEC vec v_first(vec x, int n, vec y) {
	words m = lanes_below(n);
	return (vec){_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(m.a)), _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(m.b))};
}
VEC __m256 power8(__m256 t) {
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127)), 23));
}
// v_power is 2^n for the n in the low bits of a shifted integer.
VEC vec v_power(vec t) { return (vec){power8(t.a), power8(t.b)}; }
VEC __m256i round8(__m256 x) {
	__m256i u = _mm256_castps_si256(x);
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
	__m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
	__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
	r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
	return _mm256_and_si256(r, _mm256_set1_epi32((int)0xffff0000u));
}
// v_round rounds to bf16, in the high halves.
VEC words v_round(vec x) { return (words){round8(x.a), round8(x.b)}; }
VEC vec v_as_float(words x) { return (vec){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
VEC void v_store_high(uint16_t *p, words x) {
	__m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(x.a, 16), _mm256_srli_epi32(x.b, 16));
	_mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
VEC words w_load(const uint32_t *p) {
	return (words){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8))};
}
VEC words w_load_first(const uint32_t *p, int n) {
	words m = lanes_below(n);
	return (words){_mm256_maskload_epi32((const int *)p, m.a), _mm256_maskload_epi32((const int *)p + 8, m.b)};
}
VEC words w_set1(uint32_t x) { return (words){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)}; }
VEC words w_even_only(words x) {
	const __m256i low = _mm256_set1_epi32(0xffff);
	return (words){_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low)};
}
VEC words w_odd_only(words x) {
	const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
	return (words){_mm256_and_si256(x.a, high), _mm256_and_si256(x.b, high)};
}
VEC __m256i codes8(const int8_t *p) {
	return _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))));
}
// w_codes makes pairs of 16 codes and 16 more; small integers are exact in bf16.
VEC words w_codes(const int8_t *even, const int8_t *odd) {
	return (words){_mm256_or_si256(_mm256_srli_epi32(codes8(even), 16), codes8(odd)),
		_mm256_or_si256(_mm256_srli_epi32(codes8(even + 8), 16), codes8(odd + 8))};
}
VEC __m256 widen8(const uint16_t *p) {
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
// v_widen loads 16 bf16.
VEC vec v_widen(const uint16_t *p) { return (vec){widen8(p), widen8(p + 8)}; }
VEC __m256 odd8(__m256i x) { return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000u))); }
VEC __m256 even8(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
VEC vec w_odd(words x) { return (vec){odd8(x.a), odd8(x.b)}; }
VEC vec w_even(words x) { return (vec){even8(x.a), even8(x.b)}; }
VEC vec v_dot(vec acc, words a, words w) { return v_fma(w_even(a), w_even(w), v_fma(w_odd(a), w_odd(w), acc)); }

#define PRODUCT_ROWS 4
#define PRODUCT_PANELS 1
#define PRODUCT_FEW 2
#define PRODUCT_FEW_PANELS 2
#define SCORE_ROWS 4
#define SCORE_VECTORS 1
#define MIX_VECTORS 1
#include "vec_rows.h"
#include "vec_kv.h"
#include "vec_tile_ahead.h"
#include "vec_tile_widen.h"
#include "vec_product.h"
#include "avx2_int8.h"
#include "avx2_int4.h"
#include "vec_attention.h"
#include "vec_join.h"

const tdm_kernels tdm_avx2 = {
	.name = "avx2", .flushes = 1,
	.product = product, .product_int8 = tdm_avx2_product_int8, .product_int4 = tdm_avx2_product_int4, .quantize = tdm_avx2_quantize,
	.norm = norm, .adjust = adjust, .rotate = rotate,
	.attention = attention, .attention_part = attention_part, .attention_join = attention_join, .exps = exps,
};

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
