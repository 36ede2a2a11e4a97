// Products in int8 with AVX2, which multiplies bytes only unsigned by signed ones: one
// operand gives its magnitude and, to the other, its sign. Widening both to 16 bits
// instead takes as many multiplications and was as fast (Zen 3). The steps of a sum are
// assembly: as intrinsics GCC 12 mixes those of many sums and keeps half of these in
// memory.

enum {
	INT8_ROWS = 4,
	INT8_AHEAD = 1024 // bytes of a panel that thin_int8 has asked for; 512 to 2048 do as well
};

VEC __m256i bytes_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

VEC __m256i quad_set1(const int8_t *p) {
	int32_t quad;
	memcpy(&quad, p, sizeof quad);
	return _mm256_set1_epi32(quad);
}

VEC words sums_zero(void) { return (words){_mm256_setzero_si256(), _mm256_setzero_si256()}; }

// quads_add adds the four products of each lane of x, whose magnitudes are given, and
// y. Neighbours' products do not saturate: 2 * 127 * 127 < 2^15.
VEC __m256i quads_add(__m256i sum, __m256i magnitudes, __m256i x, __m256i y, __m256i ones) {
	__m256i t;
	__asm__("vpsignb %[x], %[y], %[t]\n\t"
			"vpmaddubsw %[t], %[magnitudes], %[t]\n\t"
			"vpmaddwd %[ones], %[t], %[t]\n\t"
			"vpaddd %[t], %[sum], %[sum]"
			: [sum] "+x"(sum), [t] "=&x"(t)
			: [magnitudes] "x"(magnitudes), [x] "x"(x), [y] "x"(y), [ones] "x"(ones));
	return sum;
}

// chain_group carries 16 chains at c on by a group: its sums, and the scales of the
// activations and, at w, of the weights.
VEC void chain_group(float *c, words sums, float scale, const uint8_t *w) {
	const vec scales = v_mul(v_set1(scale), v_load((const float *)w));
	v_store(c, v_fma((vec){_mm256_cvtepi32_ps(sums.a), _mm256_cvtepi32_ps(sums.b)}, scales, v_load(c)));
}

// tile_int8 carries rows by one panel of c, [row][TDM_UNIT_PANELS][16], on by a group.
VEC void tile_int8(const int rows, const int8_t *a, const float *scales, size_t groups, const uint8_t *w, float *c) {
	const __m256i ones = _mm256_set1_epi16(1);
	const uint8_t *values = w + TDM_LANES * sizeof(float);
	words sums[INT8_ROWS];
#pragma GCC unroll 4
	for (int r = 0; r < rows; r++)
		sums[r] = sums_zero();
	for (int k = 0; k < TDM_GROUP; k += 4, values += 64) {
		const words x = {bytes_load(values), bytes_load(values + 32)}, magnitudes = {_mm256_abs_epi8(x.a), _mm256_abs_epi8(x.b)};
#pragma GCC unroll 4
		for (int r = 0; r < rows; r++) {
			const __m256i quad = quad_set1(a + (size_t)r * groups * TDM_GROUP + k);
			sums[r].a = quads_add(sums[r].a, magnitudes.a, x.a, quad, ones);
			sums[r].b = quads_add(sums[r].b, magnitudes.b, x.b, quad, ones);
		}
	}
#pragma GCC unroll 4
	for (int r = 0; r < rows; r++)
		chain_group(c + r * TDM_UNIT_PANELS * TDM_LANES, sums[r], scales[(size_t)r * groups], w);
}

#define TILE_INT8(rows) \
	static __attribute__((noinline)) void tile_int8_##rows(const int8_t *a, const float *scales, size_t groups, const uint8_t *w, float *c) { \
		tile_int8(rows, a, scales, groups, w, c); \
	}
TILE_INT8(1) TILE_INT8(2) TILE_INT8(3) TILE_INT8(4)

typedef void tile_int8_function(const int8_t *a, const float *scales, size_t groups, const uint8_t *w, float *c);
static tile_int8_function *const int8_tiles[INT8_ROWS] = {tile_int8_1, tile_int8_2, tile_int8_3, tile_int8_4};

// thin_int8 is one row by a whole unit, all groups, from zeros at c: four streams of
// weights, as in tile_thin.
static __attribute__((noinline)) void thin_int8(const int8_t *a, const float *scales, size_t groups, const uint8_t *w, float *c) {
	const __m256i ones = _mm256_set1_epi16(1);
	const size_t panel = groups * TDM_GROUP_BYTES;
	for (size_t g = 0; g < groups; g++, a += TDM_GROUP, w += TDM_GROUP_BYTES) {
		words sums[TDM_UNIT_PANELS];
#pragma GCC unroll 4
		for (int p = 0; p < TDM_UNIT_PANELS; p++)
			sums[p] = sums_zero();
		for (int k = 0; k < TDM_GROUP; k += 4) {
			const __m256i x = quad_set1(a + k), magnitudes = _mm256_abs_epi8(x);
#pragma GCC unroll 4
			for (int p = 0; p < TDM_UNIT_PANELS; p++) {
				const uint8_t *values = w + (size_t)p * panel + TDM_LANES * (sizeof(float) + (size_t)k);
				__builtin_prefetch(values + INT8_AHEAD);
				sums[p].a = quads_add(sums[p].a, magnitudes, x, bytes_load(values), ones);
				sums[p].b = quads_add(sums[p].b, magnitudes, x, bytes_load(values + 32), ones);
			}
		}
#pragma GCC unroll 4
		for (int p = 0; p < TDM_UNIT_PANELS; p++)
			chain_group(c + p * TDM_LANES, sums[p], scales[g], w + (size_t)p * panel);
	}
}

void tdm_avx2_product_int8(const tdm_product *job, int unit, int row0, int row1) {
	const int first = unit * TDM_UNIT_PANELS;
	const int panels = job->panels - first < TDM_UNIT_PANELS ? job->panels - first : TDM_UNIT_PANELS;
	const size_t groups = job->groups, panel = groups * TDM_GROUP_BYTES;
	const uint8_t *w = (const uint8_t *)job->w + (size_t)first * panel;
	for (int row = row0; row < row1; row += INT8_ROWS) {
		const int rows = row1 - row < INT8_ROWS ? row1 - row : INT8_ROWS;
		const int8_t *a = job->q.values + (size_t)row * groups * TDM_GROUP;
		const float *scales = job->q.scales + (size_t)row * groups;
		_Alignas(64) float c[INT8_ROWS * TDM_UNIT_PANELS * TDM_LANES] = {0};
		const int thin = rows == 1 && panels == TDM_UNIT_PANELS;
		if (thin)
			thin_int8(a, scales, groups, w, c);
		for (size_t g = 0; g < groups && !thin; g++)
			for (int p = 0; p < panels; p++)
				int8_tiles[rows - 1](a + g * TDM_GROUP, scales + g, groups, w + (size_t)p * panel + g * TDM_GROUP_BYTES, c + p * TDM_LANES);
		for (int r = 0; r < rows; r++)
			finish(job, c + r * TDM_UNIT_PANELS * TDM_LANES, row + r, first, panels);
	}
}

void tdm_avx2_quantize(int8_t *values, float *scales, const uint16_t *x, int n) { tdm_quantize(values, scales, x, n); }
