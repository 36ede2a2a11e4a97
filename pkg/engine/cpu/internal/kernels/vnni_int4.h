// Products in int4 with AVX-512 VNNI: what codes stand for is looked up 64 at a time by
// vpshufb, and multiplied as in vnni_int8.h. Behind it.

enum {
	PARTS = TDM_GROUP / TDM_INT4_GROUP, // of a group, with a scale each
	PART_BYTES = 64 + TDM_LANES * TDM_INT4_GROUP // of a panel that is looked up
};

// vnni_values is a group of a unit: for each part its scales, float[16], and its values,
// as a panel in int8 has those of a group; and where the sums of a part begin, -128 times
// what its weights add up to.
typedef struct vnni_values {
	uint8_t panels[TDM_UNIT_PANELS][PARTS * PART_BYTES];
	int32_t starts[PARTS][TDM_UNIT_PANELS * TDM_LANES];
} vnni_values;

// int4_values is the table, in each quarter of a register.
VEC words int4_values(void) { return _mm512_broadcast_i32x4(_mm_setr_epi8(TDM_INT4_VALUES)); }

// low_values and high_values are what the low and the high halves of bytes stand for.
VEC words low_values(words table, words codes) {
	return _mm512_shuffle_epi8(table, _mm512_and_si512(codes, _mm512_set1_epi8(15)));
}
VEC words high_values(words table, words codes) { return low_values(table, _mm512_srli_epi16(codes, 4)); }

// part_scales are the scales of a part of a group.
VEC vec part_scales(const uint8_t *group, size_t part) {
	const __m256i scales = _mm256_loadu_si256((const __m256i *)(group + part * TDM_LANES * sizeof(uint16_t)));
	return v_as_float(_mm512_slli_epi32(_mm512_cvtepu16_epi32(scales), 16));
}

// look_up_vnni looks a group of one panel up, and asks for the next group's codes.
static __attribute__((noinline)) void look_up_vnni(vnni_values *to, int p, const uint8_t *group) {
	const words table = int4_values(), x = _mm512_set1_epi8(-128); // unsigned: 128
	const uint8_t *codes = group + TDM_INT4_SCALES_BYTES;
	for (size_t part = 0; part < PARTS; part++) {
		uint8_t *panel = to->panels[p] + part * PART_BYTES;
		words sums = _mm512_setzero_si512();
		v_store((float *)(void *)panel, part_scales(group, part));
		for (uint8_t *values = panel + 64; values < panel + PART_BYTES; values += 128, codes += 64) {
			const words both = _mm512_loadu_si512(codes), low = low_values(table, both), high = high_values(table, both);
			__builtin_prefetch(codes + TDM_INT4_BYTES);
			_mm512_store_si512(values, low);
			_mm512_store_si512(values + 64, high);
			sums = lanes_add(lanes_add(sums, x, low), x, high);
		}
		_mm512_store_si512(to->starts[part] + p * TDM_LANES, _mm512_sub_epi32(_mm512_setzero_si512(), sums));
	}
}

TILES_VNNI(tiles_vnni_int4, TDM_INT4_GROUP, 0)

// block_vnni_int4 computes some rows of a unit's `panels` panels into c, from zeros.
static void block_vnni_int4(const int8_t *a, const float *scales, size_t groups, const uint8_t *const *w, int panels, int rows, float *c) {
	_Alignas(64) vnni_values unit;
	_Alignas(64) vnni_rows x;
	const uint8_t *looked_up[TDM_UNIT_PANELS];
	for (int p = 0; p < TDM_UNIT_PANELS; p++)
		looked_up[p] = unit.panels[p];
	for (size_t g = 0; g < groups; g++) {
		for (int p = 0; p < TDM_UNIT_PANELS; p++)
			look_up_vnni(&unit, p, w[p] + g * TDM_INT4_BYTES);
		for (int r = 0; r < rows; r += VNNI_ROWS) {
			rows_open(&x, rows - r, a + ((size_t)r * groups + g) * TDM_GROUP, scales + (size_t)r * groups + g, groups);
			for (size_t part = 0; part < PARTS; part++)
				tile_rows(tiles_vnni_int4, &x, part * TDM_INT4_GROUP, looked_up, part * PART_BYTES, unit.starts[part], panels, r, rows, c);
		}
	}
}

// half_totals adds up each half of 64 elements of a row, which all lanes of that half
// become.
VEC words half_totals(const int8_t *a) {
	words sum = lanes_add(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(a));
	sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, 0x4e));
	sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, 0xb1));
	return _mm512_add_epi32(sum, _mm512_shuffle_i64x2(sum, sum, 0xb1));
}

// part_start is where the sums of a part of a group of a row begin.
VEC words part_start(const int8_t *a, size_t part) {
	const words totals = half_totals(a + part / 2 * 64);
	const words all = part % 2 ? _mm512_shuffle_i64x2(totals, totals, 0xff) : _mm512_shuffle_i64x2(totals, totals, 0);
	return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(all, 7));
}

// thin_vnni_int4 is one row by a whole unit, all groups, into c: four streams of weights,
// which the table gives 128 more.
static __attribute__((noinline)) void thin_vnni_int4(const int8_t *a, const float *scales, size_t groups, const uint8_t *const *w, float *c) {
	const words table = bytes_flip(int4_values());
	vec acc[TDM_UNIT_PANELS];
#pragma GCC unroll 4
	for (int p = 0; p < TDM_UNIT_PANELS; p++)
		acc[p] = v_zero();
	for (size_t g = 0; g < groups; g++) {
		for (size_t part = 0; part < PARTS; part++) {
			const size_t at = g * TDM_INT4_BYTES, codes = at + TDM_INT4_SCALES_BYTES + part * TDM_INT4_GROUP * TDM_LANES / 2;
			const words start = part_start(a, part);
			words sums[TDM_UNIT_PANELS];
#pragma GCC unroll 4
			for (int p = 0; p < TDM_UNIT_PANELS; p++)
				sums[p] = start;
#pragma GCC unroll 4
			for (size_t k = 0; k < TDM_INT4_GROUP; k += 8) {
				uint32_t first, second;
				memcpy(&first, a + part * TDM_INT4_GROUP + k, sizeof first);
				memcpy(&second, a + part * TDM_INT4_GROUP + k + 4, sizeof second);
				const words x = w_set1(first), y = w_set1(second);
#pragma GCC unroll 4
				for (int p = 0; p < TDM_UNIT_PANELS; p++) {
					const uint8_t *from = w[p] + codes + k * TDM_LANES / 2;
					const words both = _mm512_loadu_si512(from);
					__builtin_prefetch(from + VNNI_AHEAD);
					sums[p] = lanes_add(lanes_add(sums[p], low_values(table, both), x), high_values(table, both), y);
				}
			}
#pragma GCC unroll 4
			for (int p = 0; p < TDM_UNIT_PANELS; p++)
				acc[p] = v_fma(_mm512_cvtepi32_ps(sums[p]), v_mul(v_set1(scales[g]), part_scales(w[p] + at, part)), acc[p]);
		}
		a += TDM_GROUP;
	}
#pragma GCC unroll 4
	for (int p = 0; p < TDM_UNIT_PANELS; p++)
		v_store(c + p * TDM_LANES, acc[p]);
}

// thin_vnni_int4_in_turn is thin_vnni_int4 by one panel after the other: one stream.
static __attribute__((noinline)) void thin_vnni_int4_in_turn(const int8_t *a, const float *scales, size_t groups, const uint8_t *const *w, float *c) {
	const words table = bytes_flip(int4_values());
	for (int p = 0; p < TDM_UNIT_PANELS; p++) {
		const uint8_t *group = w[p];
		vec acc = v_zero();
		for (size_t g = 0; g < groups; g++, group += TDM_INT4_BYTES) {
			const uint8_t *codes = group + TDM_INT4_SCALES_BYTES;
#pragma GCC unroll 4
			for (size_t part = 0; part < PARTS; part++) {
				const int8_t *x = a + g * TDM_GROUP + part * TDM_INT4_GROUP;
				words sums[2] = {part_start(a + g * TDM_GROUP, part), _mm512_setzero_si512()};
#pragma GCC unroll 4
				for (size_t k = 0; k < TDM_INT4_GROUP; k += 8, codes += 64) {
					uint32_t first, second;
					memcpy(&first, x + k, sizeof first);
					memcpy(&second, x + k + 4, sizeof second);
					const words both = _mm512_loadu_si512(codes);
					sums[0] = lanes_add(sums[0], low_values(table, both), w_set1(first));
					sums[1] = lanes_add(sums[1], high_values(table, both), w_set1(second));
				}
				acc = v_fma(_mm512_cvtepi32_ps(_mm512_add_epi32(sums[0], sums[1])), v_mul(v_set1(scales[g]), part_scales(group, part)), acc);
			}
		}
		v_store(c + p * TDM_LANES, acc);
	}
}

static void product_vnni_int4(const tdm_product *job, int unit, int row0, int row1) {
	product_vnni(job, unit, row0, row1, TDM_INT4_BYTES, job->in_turn ? thin_vnni_int4_in_turn : thin_vnni_int4, block_vnni_int4);
}
