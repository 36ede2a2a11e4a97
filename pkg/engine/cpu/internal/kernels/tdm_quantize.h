// How numbers become int8: symmetric, in [-127, 127], one scale for a group. Plain C
// with no sum of floats in it, so that it means the same however it is compiled, and
// under any floating-point mode: what the modes treat differently rounds to 0.
#ifndef TDM_QUANTIZE_H
#define TDM_QUANTIZE_H

#include "tdm_kernels.h"
#include "tdm_scalar.h"

// TDM_LEAST_AMAX is the magnitude below which a group is zero: with more, neither
// its scale nor the reciprocal is denormal or infinite.
#define TDM_LEAST_AMAX 0x1p-100f

// tdm_scale is the scale of a group by its largest magnitude, and what its elements
// are multiplied with; if that is 0, all are 0. A group with an infinity or a NaN has
// a NaN for its scale, and so has every sum that it is in.
static inline float tdm_scale(float largest, float *reciprocal) {
	*reciprocal = 0;
	if (!(largest <= FLT_MAX))
		return NAN;
	if (largest < TDM_LEAST_AMAX)
		return 0;
	*reciprocal = 127.0f / largest;
	return largest / 127.0f;
}

// tdm_int8 rounds x * reciprocal, at most 127 in magnitude, to nearest, ties to even:
// adding 1.5 * 2^23 leaves the integer in the low bits.
static inline int8_t tdm_int8(float x, float reciprocal) {
	return (int8_t)(uint8_t)tdm_bits(x * reciprocal + 12582912.0f);
}

// tdm_quantize_group is a group of bf16; n elements, and zeros after them.
static inline float tdm_quantize_group(int8_t *values, const uint16_t *x, int n) {
	uint16_t largest = 0;
	float reciprocal;
	for (int i = 0; i < n; i++) { // magnitudes of bf16 are ordered as integers, NaN last
		uint16_t magnitude = x[i] & 0x7fff;
		largest = magnitude > largest ? magnitude : largest;
	}
	float scale = tdm_scale(tdm_float((uint32_t)largest << 16), &reciprocal);
	if (reciprocal == 0) {
		memset(values, 0, TDM_GROUP);
		return scale;
	}
	for (int i = 0; i < n; i++)
		values[i] = tdm_int8(tdm_float((uint32_t)x[i] << 16), reciprocal);
	memset(values + n, 0, (size_t)(TDM_GROUP - n));
	return scale;
}

static inline void tdm_quantize(int8_t *values, float *scales, const uint16_t *x, int n) {
	for (; n >= TDM_GROUP; n -= TDM_GROUP, x += TDM_GROUP, values += TDM_GROUP)
		*scales++ = tdm_quantize_group(values, x, TDM_GROUP); // a constant: unrolled
	if (n > 0)
		*scales = tdm_quantize_group(values, x, n);
}

#endif
