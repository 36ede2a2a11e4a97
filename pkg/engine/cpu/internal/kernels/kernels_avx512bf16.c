// AVX-512 with vdpbf16ps, which is the class's multiply-add of a pair.
#if defined(__x86_64__)
#ifndef __clang__
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")
#endif

#include "tdm_kernels.h"
#include "tdm_kv.h"
#include "tdm_scalar.h"
#include <immintrin.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma"))), apply_to = function)
#endif
#define VEC_BF16 1
#include "vec_avx512.h"

VEC vec v_dot(vec acc, words a, words w) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)w); }

#define PRODUCT_ROWS 6
#define PRODUCT_PANELS 4
#define PRODUCT_FEW 0
#define PRODUCT_FEW_PANELS 0
#define SCORE_ROWS 6
#define SCORE_VECTORS 2
#define MIX_VECTORS 4
#include "vec_rows.h"
#include "vec_kv.h"
#include "vec_tile_ahead.h"
#include "vec_tile_dot.h"
#include "vec_product.h"
#include "amx_int8.h"
#include "vec_attention.h"
#include "vec_join.h"

const tdm_kernels tdm_avx512bf16 = {
	.name = "avx512bf16", .flushes = 1,
	.product = product, .product_int8 = tdm_avx512_product_int8, .product_int4 = tdm_avx512_product_int4, .quantize = tdm_avx512_quantize,
	.norm = norm, .adjust = adjust, .rotate = rotate,
	.attention = attention, .attention_part = attention_part, .attention_join = attention_join, .exps = exps,
};

// Where vdpbf16ps takes two cycles, two multiply-adds of widened halves are
// faster, but only if several rows share the widening of the weights.
static void mixed_product(const tdm_product *p, int unit, int row0, int row1) {
	(row1 - row0 < 3 ? product : tdm_avx512.product)(p, unit, row0, row1);
}

const tdm_kernels tdm_avx512mixed = {
	.name = "avx512mixed", .flushes = 1,
	.product = mixed_product, .product_int8 = tdm_avx512_product_int8, .product_int4 = tdm_avx512_product_int4, .quantize = tdm_avx512_quantize,
	.norm = norm, .adjust = adjust, .rotate = rotate,
	.attention = attention, .attention_part = attention_part, .attention_join = attention_join, .exps = exps,
};

// The same, with many rows in int8 by tiles.
const tdm_kernels tdm_avx512amx = {
	.name = "avx512amx", .flushes = 1,
	.product = mixed_product, .product_int8 = product_amx, .product_int4 = tdm_avx512_product_int4, .quantize = tdm_avx512_quantize,
	.norm = norm, .adjust = adjust, .rotate = rotate,
	.attention = attention, .attention_part = attention_part, .attention_join = attention_join, .exps = exps,
};

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
