// How weights become 4 bits: groups of 32, each element a code of a fixed table and
// each group a scale in bf16. Plain C that means the same however it is compiled and
// under any floating-point mode: sums have a fixed order, nothing that matters is
// denormal, and no product is fused with a sum.
#ifndef TDM_INT4_H
#define TDM_INT4_H

#include "tdm_kernels.h"
#include "tdm_quantize.h"
#include "tdm_scalar.h"

// TDM_INT4_VALUES are what the codes 0 to 15 stand for, in ascending order: denser where
// weights are. docs/decisions/0012-int4-weights.md says where they come from.
#define TDM_INT4_VALUES -127, -99, -78, -61, -47, -34, -22, -11, 0, 12, 23, 35, 49, 64, 82, 105

// TDM_INT4_MOST is more than the largest magnitude that a code is looked up for: of a
// scale that is tried, the largest element is 160 times, and a scale that is fitted to
// the codes of another is no less than half of that one.
enum { TDM_INT4_MOST = 512 };

// TDM_LAST is the place of the last integer that is no nearer to b than to a, a below b.
#define TDM_LAST(a, b) (((a) + (b) + 2 * TDM_INT4_MOST) / 2)

// tdm_int4_codes are the nearest codes of the integers from -512 on, the lower one of two
// that are equally near.
static const uint8_t tdm_int4_codes[2 * TDM_INT4_MOST] = {
	[0 ... TDM_LAST(-127, -99)] = 0,
	[TDM_LAST(-127, -99) + 1 ... TDM_LAST(-99, -78)] = 1,
	[TDM_LAST(-99, -78) + 1 ... TDM_LAST(-78, -61)] = 2,
	[TDM_LAST(-78, -61) + 1 ... TDM_LAST(-61, -47)] = 3,
	[TDM_LAST(-61, -47) + 1 ... TDM_LAST(-47, -34)] = 4,
	[TDM_LAST(-47, -34) + 1 ... TDM_LAST(-34, -22)] = 5,
	[TDM_LAST(-34, -22) + 1 ... TDM_LAST(-22, -11)] = 6,
	[TDM_LAST(-22, -11) + 1 ... TDM_LAST(-11, 0)] = 7,
	[TDM_LAST(-11, 0) + 1 ... TDM_LAST(0, 12)] = 8,
	[TDM_LAST(0, 12) + 1 ... TDM_LAST(12, 23)] = 9,
	[TDM_LAST(12, 23) + 1 ... TDM_LAST(23, 35)] = 10,
	[TDM_LAST(23, 35) + 1 ... TDM_LAST(35, 49)] = 11,
	[TDM_LAST(35, 49) + 1 ... TDM_LAST(49, 64)] = 12,
	[TDM_LAST(49, 64) + 1 ... TDM_LAST(64, 82)] = 13,
	[TDM_LAST(64, 82) + 1 ... TDM_LAST(82, 105)] = 14,
	[TDM_LAST(82, 105) + 1 ... 2 * TDM_INT4_MOST - 1] = 15,
};

// tdm_int4_guess is a scale for a group, the values that its elements then have, and the
// sum of the squared errors.
typedef struct tdm_int4_guess {
	float scale, values[TDM_INT4_GROUP], error;
} tdm_int4_guess;

// tdm_int4_guess_of rounds the elements of x by a scale.
static inline void tdm_int4_guess_of(tdm_int4_guess *guess, const float *x, float scale) {
	static const float values[] = {TDM_INT4_VALUES};
	const float reciprocal = 1.0f / scale;
	float lanes[TDM_LANES] = {0}, y[TDM_INT4_GROUP];
	uint32_t places[TDM_INT4_GROUP];
	for (int i = 0; i < TDM_INT4_GROUP; i++)
		y[i] = x[i] * reciprocal + (12582912.0f + TDM_INT4_MOST); // as tdm_int8 rounds
	memcpy(places, y, sizeof places);
	for (int i = 0; i < TDM_INT4_GROUP; i++)
		guess->values[i] = values[tdm_int4_codes[places[i] % (2 * TDM_INT4_MOST)]];
	for (int first = 0; first < TDM_INT4_GROUP; first += TDM_LANES)
		for (int l = 0; l < TDM_LANES; l++) {
			float error = x[first + l] - guess->values[first + l] * scale;
			lanes[l] += error * error;
		}
	guess->scale = scale;
	guess->error = tdm_tree(lanes);
}

// tdm_int4_fit is the scale that suits the values of a guess best, in bf16.
static inline float tdm_int4_fit(const tdm_int4_guess *guess, const float *x) {
	float products[TDM_LANES] = {0}, squares[TDM_LANES] = {0};
	for (int first = 0; first < TDM_INT4_GROUP; first += TDM_LANES)
		for (int l = 0; l < TDM_LANES; l++) {
			products[l] += x[first + l] * guess->values[first + l];
			squares[l] += guess->values[first + l] * guess->values[first + l];
		}
	return tdm_widen(tdm_bf16(tdm_tree(products) / tdm_tree(squares)));
}

// tdm_int4_group turns a group of 32 bf16 values, which it changes, into codes and
// returns the scale, in bf16. largest is the greatest magnitude among them.
static inline uint16_t tdm_int4_group(uint8_t *codes, float *x, float largest) {
	if (!(largest <= FLT_MAX) || largest < TDM_LEAST_AMAX) {
		memset(codes, 8, TDM_INT4_GROUP);
		return largest < TDM_LEAST_AMAX ? 0 : 0x7fc0;
	}
	// By a power of two the largest becomes 4 to 8: no square is denormal or infinite.
	const int exponent = (int)(tdm_bits(largest) >> 23) - 127 - 2;
	const float up = tdm_float((uint32_t)(127 - exponent) << 23), down = tdm_float((uint32_t)(127 + exponent) << 23);
	largest *= up;
	for (int i = 0; i < TDM_INT4_GROUP; i++)
		x[i] *= up;
	tdm_int4_guess best = {.error = INFINITY}, guess;
	for (int to = 104; to <= 160; to += 8)
		for (int sign = -1; sign <= 1; sign += 2) {
			tdm_int4_guess_of(&guess, x, tdm_widen(tdm_bf16(largest / (float)(sign * to))));
			if (guess.error < best.error)
				best = guess;
		}
	for (int times = 0; times < 2; times++) {
		tdm_int4_guess_of(&guess, x, tdm_int4_fit(&best, x));
		if (guess.error < best.error)
			best = guess;
	}
	for (int i = 0; i < TDM_INT4_GROUP; i++)
		codes[i] = tdm_int4_codes[(int)best.values[i] + TDM_INT4_MOST];
	return tdm_bf16(best.scale * down);
}

#endif
