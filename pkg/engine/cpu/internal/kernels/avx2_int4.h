// Products in int4 with AVX2: codes are looked up by vpshufb in a register that holds
// the table, and what they stand for is multiplied as in avx2_int8.h. Behind it.

// INT4_ROWS share what they look up.
enum { INT4_ROWS = 4 * INT8_ROWS };

VEC __m256i int4_table(void) {
	return _mm256_broadcastsi128_si256(_mm_setr_epi8(TDM_INT4_VALUES));
}

// looked_up are the values of the low halves of bytes, or of the high ones.
VEC __m256i looked_up(__m256i table, __m256i codes, int high) {
	return _mm256_shuffle_epi8(table, _mm256_and_si256(high ? _mm256_srli_epi16(codes, 4) : codes, _mm256_set1_epi8(15)));
}

// chain_part carries 16 chains at c on by 32 elements: their sums, and the scales of the
// activations and, at w, of the weights.
VEC void chain_part(float *c, words sums, float scale, const uint16_t *w) {
	const __m256i both = bytes_load(w);
	const words scales = {_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(both)), 16),
		_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(both, 1)), 16)};
	v_store(c, v_fma((vec){_mm256_cvtepi32_ps(sums.a), _mm256_cvtepi32_ps(sums.b)}, v_mul(v_set1(scale), v_as_float(scales)), v_load(c)));
}

// look_up_group writes what a group's codes stand for, as panels in int8 have it.
static void look_up_group(int8_t *values, const uint8_t *codes) {
	const __m256i table = int4_table();
	for (int i = 0; i < TDM_GROUP * TDM_LANES; i += 128, codes += 64)
		for (int half = 0; half < 64; half += 32) {
			const __m256i x = bytes_load(codes + half);
			_mm256_store_si256((__m256i *)(values + i + half), looked_up(table, x, 0));
			_mm256_store_si256((__m256i *)(values + i + 64 + half), looked_up(table, x, 1));
		}
}

// tile_int4 carries rows by one panel of c, [row][TDM_UNIT_PANELS][16], on by a group.
VEC void tile_int4(const int rows, const int8_t *a, const float *scales, size_t groups, const int8_t *values, const uint16_t *w, float *c) {
	const __m256i ones = _mm256_set1_epi16(1);
	for (int part = 0; part < TDM_GROUP / TDM_INT4_GROUP; part++, w += TDM_LANES) {
		words sums[INT8_ROWS];
#pragma GCC unroll 4
		for (int r = 0; r < rows; r++)
			sums[r] = sums_zero();
		for (int k = 0; k < TDM_INT4_GROUP; k += 4, a += 4, values += 64) {
			const words x = {bytes_load(values), bytes_load(values + 32)}, magnitudes = {_mm256_abs_epi8(x.a), _mm256_abs_epi8(x.b)};
#pragma GCC unroll 4
			for (int r = 0; r < rows; r++) {
				const __m256i quad = quad_set1(a + (size_t)r * groups * TDM_GROUP);
				sums[r].a = quads_add(sums[r].a, magnitudes.a, x.a, quad, ones);
				sums[r].b = quads_add(sums[r].b, magnitudes.b, x.b, quad, ones);
			}
		}
#pragma GCC unroll 4
		for (int r = 0; r < rows; r++)
			chain_part(c + r * TDM_UNIT_PANELS * TDM_LANES, sums[r], scales[(size_t)r * groups], w);
	}
}

#define TILE_INT4(rows) \
	static __attribute__((noinline)) void tile_int4_##rows(const int8_t *a, const float *scales, size_t groups, const int8_t *values, const uint16_t *w, float *c) { \
		tile_int4(rows, a, scales, groups, values, w, c); \
	}
TILE_INT4(1) TILE_INT4(2) TILE_INT4(3) TILE_INT4(4)

typedef void tile_int4_function(const int8_t *a, const float *scales, size_t groups, const int8_t *values, const uint16_t *w, float *c);
static tile_int4_function *const int4_tiles[INT8_ROWS] = {tile_int4_1, tile_int4_2, tile_int4_3, tile_int4_4};

// thin_int4 is one row by a whole unit, all groups, from zeros at c: four streams of
// weights, as in tile_thin.
static __attribute__((noinline)) void thin_int4(const int8_t *a, const float *scales, size_t groups, const uint8_t *w, float *c) {
	const __m256i ones = _mm256_set1_epi16(1), table = int4_table();
	const size_t panel = groups * TDM_INT4_BYTES;
	for (size_t g = 0; g < groups; g++, w += TDM_INT4_BYTES) {
		const uint8_t *codes = w + TDM_INT4_SCALES_BYTES;
		for (size_t part = 0; part < TDM_GROUP / TDM_INT4_GROUP; part++) {
			words sums[TDM_UNIT_PANELS];
#pragma GCC unroll 4
			for (int p = 0; p < TDM_UNIT_PANELS; p++)
				sums[p] = sums_zero();
			for (int k = 0; k < TDM_INT4_GROUP; k += 8, a += 8, codes += 64) {
				const __m256i x = quad_set1(a), y = quad_set1(a + 4), of_x = _mm256_abs_epi8(x), of_y = _mm256_abs_epi8(y);
#pragma GCC unroll 4
				for (int p = 0; p < TDM_UNIT_PANELS; p++) {
					const __m256i first = bytes_load(codes + (size_t)p * panel), second = bytes_load(codes + (size_t)p * panel + 32);
					sums[p].a = quads_add(sums[p].a, of_x, x, looked_up(table, first, 0), ones);
					sums[p].b = quads_add(sums[p].b, of_x, x, looked_up(table, second, 0), ones);
					sums[p].a = quads_add(sums[p].a, of_y, y, looked_up(table, first, 1), ones);
					sums[p].b = quads_add(sums[p].b, of_y, y, looked_up(table, second, 1), ones);
				}
			}
#pragma GCC unroll 4
			for (int p = 0; p < TDM_UNIT_PANELS; p++)
				chain_part(c + p * TDM_LANES, sums[p], scales[g], (const uint16_t *)(w + (size_t)p * panel) + part * TDM_LANES);
		}
	}
}

void tdm_avx2_product_int4(const tdm_product *job, int unit, int row0, int row1) {
	const int first = unit * TDM_UNIT_PANELS;
	const int panels = job->panels - first < TDM_UNIT_PANELS ? job->panels - first : TDM_UNIT_PANELS;
	const size_t groups = job->groups, panel = groups * TDM_INT4_BYTES;
	const uint8_t *w = (const uint8_t *)job->w + (size_t)first * panel;
	for (int row = row0; row < row1; row += INT4_ROWS) {
		const int rows = row1 - row < INT4_ROWS ? row1 - row : INT4_ROWS;
		const int8_t *a = job->q.values + (size_t)row * groups * TDM_GROUP;
		const float *scales = job->q.scales + (size_t)row * groups;
		_Alignas(64) float c[INT4_ROWS * TDM_UNIT_PANELS * TDM_LANES] = {0};
		_Alignas(64) int8_t values[TDM_GROUP * TDM_LANES];
		const int thin = rows == 1 && panels == TDM_UNIT_PANELS;
		if (thin)
			thin_int4(a, scales, groups, w, c);
		for (size_t g = 0; g < groups && !thin; g++)
			for (int p = 0; p < panels; p++) {
				const uint8_t *from = w + (size_t)p * panel + g * TDM_INT4_BYTES;
				look_up_group(values, from + TDM_INT4_SCALES_BYTES);
				for (int r = 0; r < rows; r += INT8_ROWS) {
					const int count = rows - r < INT8_ROWS ? rows - r : INT8_ROWS;
					const size_t at = (size_t)r * groups + g;
					int4_tiles[count - 1](a + at * TDM_GROUP, scales + at, groups, values, (const uint16_t *)from, c + (r * TDM_UNIT_PANELS + p) * TDM_LANES);
				}
			}
		for (int r = 0; r < rows; r++)
			finish(job, c + r * TDM_UNIT_PANELS * TDM_LANES, row + r, first, panels);
	}
}
