// tdm_quantize with AVX-512, to the bit: rounding to the nearest integer in one
// instruction, which like the definition's sum rounds ties to even.

// group_largest is the largest magnitude of a group of bf16, as a number.
VEC float group_largest(const words x[4]) {
	const words all = _mm512_set1_epi16(0x7fff);
	const words two = _mm512_max_epu16(_mm512_max_epu16(_mm512_and_si512(x[0], all), _mm512_and_si512(x[1], all)),
		_mm512_max_epu16(_mm512_and_si512(x[2], all), _mm512_and_si512(x[3], all)));
	const __m256i one = _mm256_max_epu16(_mm512_castsi512_si256(two), _mm512_extracti64x4_epi64(two, 1));
	const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(one), _mm256_extracti128_si256(one, 1));
	// The least of the complements is the largest's.
	const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
	return tdm_float((uint32_t)(uint16_t)~_mm_extract_epi16(least, 0) << 16);
}

// quantize_512 is tdm_quantize_group.
VEC float quantize_512(int8_t *values, const uint16_t *x, int n) {
	words group[4];
	float reciprocal;
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++) {
		const int left = n - 32 * i;
		group[i] = left >= 32 ? _mm512_loadu_si512(x + 32 * i) : _mm512_maskz_loadu_epi16(left <= 0 ? 0 : (__mmask32)((1u << left) - 1), x + 32 * i);
	}
	const float scale = tdm_scale(group_largest(group), &reciprocal);
	if (reciprocal == 0) {
		memset(values, 0, TDM_GROUP);
		return scale;
	}
	const vec by = v_set1(reciprocal);
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++) {
		const words low = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(group[i])), 16);
		const words high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(group[i], 1)), 16);
		_mm_storeu_si128((__m128i *)(values + 32 * i), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v_mul(v_as_float(low), by))));
		_mm_storeu_si128((__m128i *)(values + 32 * i + 16), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v_mul(v_as_float(high), by))));
	}
	return scale;
}

void tdm_avx512_quantize(int8_t *values, float *scales, const uint16_t *x, int n) {
	for (; n > 0; n -= TDM_GROUP, x += TDM_GROUP, values += TDM_GROUP)
		*scales++ = n >= TDM_GROUP ? quantize_512(values, x, TDM_GROUP) : quantize_512(values, x, n);
}
