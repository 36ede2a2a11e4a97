// AVX-512 without bf16 instructions: two multiply-adds of the widened halves.
#if defined(__x86_64__)
#ifndef __clang__
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")
#endif

#include "tdm_int4.h"
#include "tdm_kernels.h"
#include "tdm_kv.h"
#include "tdm_quantize.h"
#include "tdm_scalar.h"
#include <immintrin.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))), apply_to = function)
#endif
#include "vec_avx512.h"

VEC vec w_odd(words x) { return v_as_float(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u))); }
VEC vec w_even(words x) { return v_as_float(_mm512_slli_epi32(x, 16)); }
VEC vec v_dot(vec acc, words a, words w) { return v_fma(w_even(a), w_even(w), v_fma(w_odd(a), w_odd(w), acc)); }

#define PRODUCT_ROWS 8
#define PRODUCT_PANELS 2
#define PRODUCT_FEW 4
#define PRODUCT_FEW_PANELS 4
#define SCORE_ROWS 6
#define SCORE_VECTORS 2
#define MIX_VECTORS 2
#include "vec_rows.h"
#include "vec_kv.h"
#include "vec_tile_ahead.h"
#include "vec_tile_widen.h"
#include "vec_product.h"
#include "vnni_int8.h"
#include "vnni_int4.h"
#include "avx512_quantize.h"
#include "vec_attention.h"
#include "vec_join.h"

void tdm_avx512_product_int8(const tdm_product *p, int unit, int row0, int row1) {
	(tdm_vnni() ? product_vnni_int8 : tdm_avx2_product_int8)(p, unit, row0, row1);
}

void tdm_avx512_product_int4(const tdm_product *p, int unit, int row0, int row1) {
	(tdm_vnni() ? product_vnni_int4 : tdm_avx2_product_int4)(p, unit, row0, row1);
}

const tdm_kernels tdm_avx512 = {
	.name = "avx512", .flushes = 1,
	.product = product, .product_int8 = tdm_avx512_product_int8, .product_int4 = tdm_avx512_product_int4, .quantize = tdm_avx512_quantize,
	.norm = norm, .adjust = adjust, .rotate = rotate,
	.attention = attention, .attention_part = attention_part, .attention_join = attention_join, .exps = exps,
};

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
