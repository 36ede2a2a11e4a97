// 16 lanes as one AVX-512 register.
typedef __m512 vec;
typedef __m512i words;

#define VEC static inline __attribute__((always_inline, unused))

VEC vec v_zero(void) { return _mm512_setzero_ps(); }
VEC vec v_set1(float x) { return _mm512_set1_ps(x); }
VEC vec v_load(const float *p) { return _mm512_loadu_ps(p); }
VEC void v_store(float *p, vec x) { _mm512_storeu_ps(p, x); }
VEC vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
VEC vec v_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
VEC vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
VEC vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
VEC vec v_max(vec a, vec b) { return _mm512_max_ps(a, b); }
VEC vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
// v_if_less is a < b ? x : y.
VEC vec v_if_less(vec a, vec b, vec x, vec y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x); }
// v_first keeps the first n lanes of x and takes the others from y.
VEC vec v_first(vec x, int n, vec y) {
	__mmask16 m = n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
	return _mm512_mask_blend_ps(m, y, x);
}
// v_power is 2^n for the n in the low bits of a shifted integer.
VEC vec v_power(vec t) {
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127)), 23));
}
// v_round rounds to bf16, in the high halves.
#ifdef VEC_BF16 // has the conversion as an instruction
VEC words v_round(vec x) {
	return _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)), 16);
}
#else
VEC words v_round(vec x) {
	words u = _mm512_castps_si512(x);
	words odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
	words r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
	__mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
	r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
	return _mm512_and_si512(r, _mm512_set1_epi32((int)0xffff0000u));
}
#endif
VEC vec v_as_float(words x) { return _mm512_castsi512_ps(x); }
VEC void v_store_high(uint16_t *p, words x) {
	_mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
}
VEC words w_load(const uint32_t *p) { return _mm512_loadu_si512(p); }
VEC words w_load_first(const uint32_t *p, int n) { return _mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1), p); }
VEC words w_set1(uint32_t x) { return _mm512_set1_epi32((int)x); }
VEC words w_even_only(words x) { return _mm512_and_si512(x, _mm512_set1_epi32(0xffff)); }
VEC words w_odd_only(words x) { return _mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)); }
VEC words codes16(const int8_t *p) {
	return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))));
}
// w_codes makes pairs of 16 codes and 16 more; small integers are exact in bf16.
VEC words w_codes(const int8_t *even, const int8_t *odd) {
	return _mm512_or_si512(_mm512_srli_epi32(codes16(even), 16), codes16(odd));
}
// v_widen loads 16 bf16.
VEC vec v_widen(const uint16_t *p) {
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
