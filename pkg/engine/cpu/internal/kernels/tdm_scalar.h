// The arithmetic class's scalar operations, with denormals flushed by hand, so
// that they mean the same under any floating-point mode and on any processor.
#ifndef TDM_SCALAR_H
#define TDM_SCALAR_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF // GCC does the same under -std=c11 and does not know the pragma
#endif

static inline uint32_t tdm_bits(float x) {
	uint32_t u;
	memcpy(&u, &x, 4);
	return u;
}

static inline float tdm_float(uint32_t u) {
	float x;
	memcpy(&x, &u, 4);
	return x;
}

// tdm_flush turns denormals into zeros of their sign.
static inline float tdm_flush(float x) {
	uint32_t u = tdm_bits(x);
	return (u & 0x7f800000u) ? x : tdm_float(u & 0x80000000u);
}

// tdm_tiny decides for a result that was rounded to the least normal number
// whether it is tiny: below it after rounding to 24 bits with an unbounded
// exponent, which is what x86 flushes. high + low is the exact magnitude.
static inline float tdm_tiny(float rounded, double high, double low) {
	const double limit = (double)FLT_MIN - 0x1p-151;
	if (high < 0) {
		high = -high;
		low = -low;
	}
	if (high < limit || (high == limit && low < 0))
		return tdm_float(tdm_bits(rounded) & 0x80000000u);
	return rounded;
}

static inline float tdm_add(float a, float b) { return tdm_flush(a + b); }

static inline float tdm_mul(float a, float b) {
	float r = tdm_flush(a * b);
	if (r == FLT_MIN || r == -FLT_MIN)
		return tdm_tiny(r, (double)a * (double)b, 0);
	return r;
}

static inline float tdm_fma(float a, float b, float c) {
	float r = tdm_flush(fmaf(a, b, c));
	if (r == FLT_MIN || r == -FLT_MIN) {
		double p = (double)a * (double)b, d = c; // exact
		double s = p + d, t = s - p;
		double low = (p - (s - t)) + (d - t);
		return tdm_tiny(r, s, low);
	}
	return r;
}

// tdm_bf16 rounds to nearest, ties to even; denormals become zeros.
static inline uint16_t tdm_bf16(float x) {
	uint32_t u = tdm_bits(x);
	if ((u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(u >> 16 | 0x40); // a quiet NaN
	if (!(u & 0x7f800000u))
		return (uint16_t)(u >> 16 & 0x8000);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float tdm_widen(uint16_t x) { return tdm_flush(tdm_float((uint32_t)x << 16)); }

// tdm_dot adds one pair: the odd element first.
static inline float tdm_dot(float acc, uint32_t a, uint32_t b) {
	acc = tdm_fma(tdm_widen((uint16_t)(a >> 16)), tdm_widen((uint16_t)(b >> 16)), acc);
	return tdm_fma(tdm_widen((uint16_t)a), tdm_widen((uint16_t)b), acc);
}

// Constants of tdm_exp: Cephes' expf (S. L. Moshier), with 0 below -87 and the
// value at 87 above it, so that nothing in between is ever denormal.
#define TDM_EXP_LIMIT 87.0f
#define TDM_EXP_LOG2E 1.44269504088896341f
#define TDM_EXP_SHIFT 12582912.0f // 1.5 * 2^23: adding it rounds to an integer
#define TDM_EXP_LN2_HIGH (-0.693359375f)
#define TDM_EXP_LN2_LOW 2.12194440e-4f
#define TDM_EXP_C0 1.9875691500e-4f
#define TDM_EXP_C1 1.3981999507e-3f
#define TDM_EXP_C2 8.3334519073e-3f
#define TDM_EXP_C3 4.1665795894e-2f
#define TDM_EXP_C4 1.6666665459e-1f
#define TDM_EXP_C5 5.0000001201e-1f

static inline float tdm_exp(float x) {
	if (x < -TDM_EXP_LIMIT)
		return 0;
	if (x > TDM_EXP_LIMIT)
		x = TDM_EXP_LIMIT;
	float t = tdm_fma(x, TDM_EXP_LOG2E, TDM_EXP_SHIFT);
	float n = tdm_add(t, -TDM_EXP_SHIFT);
	float r = tdm_fma(n, TDM_EXP_LN2_HIGH, x);
	r = tdm_fma(n, TDM_EXP_LN2_LOW, r);
	float p = TDM_EXP_C0;
	p = tdm_fma(p, r, TDM_EXP_C1);
	p = tdm_fma(p, r, TDM_EXP_C2);
	p = tdm_fma(p, r, TDM_EXP_C3);
	p = tdm_fma(p, r, TDM_EXP_C4);
	p = tdm_fma(p, r, TDM_EXP_C5);
	float y = tdm_fma(p, tdm_mul(r, r), r);
	y = tdm_add(y, 1.0f);
	return tdm_mul(y, tdm_float((tdm_bits(t) + 127u) << 23));
}

// tdm_tree adds 16 lanes in halves: l and l+8, l+4, l+2, l+1.
static inline float tdm_tree(float *lanes) {
	for (int half = 8; half > 0; half /= 2)
		for (int l = 0; l < half; l++)
			lanes[l] = tdm_add(lanes[l], lanes[l + half]);
	return lanes[0];
}

#endif
