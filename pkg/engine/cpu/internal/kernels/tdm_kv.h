// Keys and values in int8: a scale for each token of a head, and where a slice has it.
#ifndef TDM_KV_H
#define TDM_KV_H

#include "tdm_quantize.h"

// tdm_kv_scale is the scale of one token's head by its largest magnitude, and what its
// elements are multiplied with; if that is 0, all codes are 0. A scale is bf16, so that
// times a power of two, as the largest probability is, it stays exact; it is rounded up,
// so that no code is more than 127. Of what is not finite it is NaN.
static inline uint16_t tdm_kv_scale(float largest, int finite, float *reciprocal) {
	float scale = tdm_scale(finite ? largest : NAN, reciprocal);
	if (*reciprocal == 0)
		return tdm_bf16(scale);
	uint32_t up = (tdm_bits(scale) + 0xffff) & 0xffff0000u;
	*reciprocal = 1.0f / tdm_float(up);
	return (uint16_t)(up >> 16);
}

// tdm_kv_scales is where a slice in int8 has the scales of a head's keys, and
// kv_heads * block_tokens behind it those of its values.
static inline uint16_t *tdm_kv_scales(const uint8_t *slice, int kv_heads, int head_size, int block_tokens, int kv_head) {
	return (uint16_t *)(slice + (size_t)2 * (size_t)kv_heads * (size_t)head_size * (size_t)block_tokens) + (size_t)kv_head * (size_t)block_tokens;
}

#endif
