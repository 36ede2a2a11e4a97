// Products in int8 with AVX-512 VNNI: vpdpbusd multiplies unsigned by signed bytes and
// adds four products to each lane, in int32, where nothing saturates. Values are in
// -127 to 127, so one operand gets 128 more, and the sums 128 times too much of the
// other: they begin below zero by that. The steps of a sum are assembly: as intrinsics
// GCC 12 keeps the sums in memory.

enum {
	VNNI_ROWS = 12,   // of a tile: with two panels' sums 24 of 32 registers
	VNNI_NARROW = 6,  // rows up to which a tile is of four panels
	VNNI_BLOCK = 96,  // rows that a group's weights are read for, then the next group's
	VNNI_AHEAD = 1024 // bytes of a panel that thin_vnni_int8 has asked for
};

// vnni_rows are a group of some rows, with 128 more: unsigned.
typedef struct vnni_rows {
	uint8_t values[VNNI_ROWS][TDM_GROUP];
	float scales[VNNI_ROWS];
} vnni_rows;

// lanes_add adds to each lane of sum the products of four unsigned bytes of x and
// four signed ones of y.
VEC words lanes_add(words sum, words x, words y) {
	__asm__("vpdpbusd %[y], %[x], %[sum]" : [sum] "+v"(sum) : [x] "v"(x), [y] "v"(y));
	return sum;
}

VEC words bytes_flip(words x) { return _mm512_xor_si512(x, _mm512_set1_epi8(-128)); }

// lanes_scale carries 16 chains on by a group: its sums and both scales.
VEC vec lanes_scale(vec acc, words sums, float scale, const uint8_t *w) {
	return v_fma(_mm512_cvtepi32_ps(sums), v_mul(v_set1(scale), v_load((const float *)w)), acc);
}

// rows_open reads a group of a tile's rows, of which so many are left.
VEC void rows_open(vnni_rows *x, int left, const int8_t *a, const float *scales, size_t groups) {
	for (int r = 0; r < left && r < VNNI_ROWS; r++, a += groups * TDM_GROUP, scales += groups) {
		for (int k = 0; k < TDM_GROUP; k += 64)
			_mm512_store_si512(x->values[r] + k, bytes_flip(_mm512_loadu_si512(a + k)));
		x->scales[r] = *scales;
	}
}

// starts_vnni is where the sums of four panels begin: -128 times what a group's
// weights add up to.
static __attribute__((noinline)) void starts_vnni(int32_t *starts, const uint8_t *const *w, size_t at) {
	const words x = _mm512_set1_epi8(-128); // unsigned: 128
	words sums[TDM_UNIT_PANELS];
#pragma GCC unroll 4
	for (int p = 0; p < TDM_UNIT_PANELS; p++)
		sums[p] = _mm512_setzero_si512();
	for (size_t k = 64; k < TDM_GROUP_BYTES; k += 64)
#pragma GCC unroll 4
		for (int p = 0; p < TDM_UNIT_PANELS; p++)
			sums[p] = lanes_add(sums[p], x, _mm512_loadu_si512(w[p] + at + k));
#pragma GCC unroll 4
	for (int p = 0; p < TDM_UNIT_PANELS; p++)
		_mm512_store_si512(starts + p * TDM_LANES, _mm512_sub_epi32(_mm512_setzero_si512(), sums[p]));
}

// tile_vnni carries rows by panels of c, [row][TDM_UNIT_PANELS][16], on by `length`
// elements, from `first` on of the group that x holds. They have one scale, and weights as a
// group in int8 has them; the tile asks for those that are `ahead` bytes behind, if that
// is not 0.
VEC void tile_vnni(const int rows, const int panels, const size_t length, const size_t ahead, const vnni_rows *x, size_t first, const uint8_t *const *w, size_t at, const int32_t *starts, float *c) {
	words sums[VNNI_ROWS][TDM_UNIT_PANELS];
	const uint8_t *from[TDM_UNIT_PANELS];
#pragma GCC unroll 4
	for (int p = 0; p < panels; p++) {
		from[p] = w[p] + at;
#pragma GCC unroll 12
		for (int r = 0; r < rows; r++)
			sums[r][p] = _mm512_load_si512(starts + p * TDM_LANES);
	}
	for (size_t k = 0; k < length; k += 4) {
		words y[TDM_UNIT_PANELS];
#pragma GCC unroll 4
		for (int p = 0; p < panels; p++) {
			y[p] = _mm512_loadu_si512(from[p] + 64 + k * TDM_LANES);
			if (ahead)
				__builtin_prefetch(from[p] + 64 + ahead + k * TDM_LANES);
		}
#pragma GCC unroll 12
		for (int r = 0; r < rows; r++) {
			uint32_t quad;
			memcpy(&quad, x->values[r] + first + k, sizeof quad);
			const words four = w_set1(quad);
#pragma GCC unroll 4
			for (int p = 0; p < panels; p++)
				sums[r][p] = lanes_add(sums[r][p], four, y[p]);
		}
	}
#pragma GCC unroll 12
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (int p = 0; p < panels; p++) {
			float *to = c + (r * TDM_UNIT_PANELS + p) * TDM_LANES;
			v_store(to, lanes_scale(v_load(to), sums[r][p], x->scales[r], from[p]));
		}
}

typedef void tile_vnni_function(const vnni_rows *x, size_t first, const uint8_t *const *w, size_t at, const int32_t *starts, float *c);

#define TILE_VNNI(name, rows, panels, length, ahead) \
	static __attribute__((noinline)) void name##_##rows(const vnni_rows *x, size_t first, const uint8_t *const *w, size_t at, const int32_t *starts, float *c) { \
		tile_vnni(rows, panels, length, ahead, x, first, w, at, starts, c); \
	}
#define TILES_VNNI(name, length, ahead) \
	TILE_VNNI(name, 1, 4, length, ahead) TILE_VNNI(name, 2, 4, length, ahead) TILE_VNNI(name, 3, 4, length, ahead) \
	TILE_VNNI(name, 4, 4, length, ahead) TILE_VNNI(name, 5, 4, length, ahead) TILE_VNNI(name, 6, 4, length, ahead) \
	TILE_VNNI(name, 7, 2, length, ahead) TILE_VNNI(name, 8, 2, length, ahead) TILE_VNNI(name, 9, 2, length, ahead) \
	TILE_VNNI(name, 10, 2, length, ahead) TILE_VNNI(name, 11, 2, length, ahead) TILE_VNNI(name, 12, 2, length, ahead) \
	static tile_vnni_function *const name[VNNI_ROWS] = {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, \
		name##_7, name##_8, name##_9, name##_10, name##_11, name##_12};
TILES_VNNI(tiles_vnni_int8, TDM_GROUP, TDM_GROUP_BYTES)

// quads_total adds up a group of one row.
VEC int32_t quads_total(const int8_t *a) {
	const words one = _mm512_set1_epi8(1);
	words sum = lanes_add(_mm512_setzero_si512(), one, _mm512_loadu_si512(a));
	return _mm512_reduce_add_epi32(lanes_add(sum, one, _mm512_loadu_si512(a + 64)));
}

// thin_vnni_int8 is one row by a whole unit, all groups, into c: four streams of weights. Here they
// are what gets 128 more; the others' sums would take as long again.
static __attribute__((noinline)) void thin_vnni_int8(const int8_t *a, const float *scales, size_t groups, const uint8_t *const *w, float *c) {
	vec acc[TDM_UNIT_PANELS];
	const uint8_t *from[TDM_UNIT_PANELS];
#pragma GCC unroll 4
	for (int p = 0; p < TDM_UNIT_PANELS; p++) {
		acc[p] = v_zero();
		from[p] = w[p];
	}
	for (size_t g = 0; g < groups; g++, a += TDM_GROUP) {
		words sums[TDM_UNIT_PANELS];
		const words start = _mm512_set1_epi32(-128 * quads_total(a));
#pragma GCC unroll 4
		for (int p = 0; p < TDM_UNIT_PANELS; p++)
			sums[p] = start;
		for (size_t k = 0; k < TDM_GROUP; k += 4) {
			uint32_t quad;
			memcpy(&quad, a + k, sizeof quad);
			const words four = w_set1(quad);
#pragma GCC unroll 4
			for (int p = 0; p < TDM_UNIT_PANELS; p++) {
				const uint8_t *values = from[p] + 64 + k * TDM_LANES;
				__builtin_prefetch(values + VNNI_AHEAD);
				sums[p] = lanes_add(sums[p], bytes_flip(_mm512_loadu_si512(values)), four);
			}
		}
#pragma GCC unroll 4
		for (int p = 0; p < TDM_UNIT_PANELS; p++) {
			acc[p] = lanes_scale(acc[p], sums[p], scales[g], from[p]);
			from[p] += TDM_GROUP_BYTES;
		}
	}
#pragma GCC unroll 4
	for (int p = 0; p < TDM_UNIT_PANELS; p++)
		v_store(c + p * TDM_LANES, acc[p]);
}

// thin_vnni_int8_in_turn is thin_vnni_int8 by one panel after the other, from the first
// weight to the last: one stream.
static __attribute__((noinline)) void thin_vnni_int8_in_turn(const int8_t *a, const float *scales, size_t groups, const uint8_t *const *w, float *c) {
	for (int p = 0; p < TDM_UNIT_PANELS; p++) {
		const uint8_t *from = w[p];
		vec acc = v_zero();
		for (size_t g = 0; g < groups; g++, from += TDM_GROUP_BYTES) {
			const int8_t *x = a + g * TDM_GROUP;
			words sums[2] = {_mm512_set1_epi32(-128 * quads_total(x)), _mm512_setzero_si512()};
#pragma GCC unroll 4
			for (int k = 0; k < TDM_GROUP; k += 8)
#pragma GCC unroll 2
				for (int i = 0; i < 2; i++) {
					uint32_t quad;
					memcpy(&quad, x + k + 4 * i, sizeof quad);
					sums[i] = lanes_add(sums[i], bytes_flip(_mm512_loadu_si512(from + 64 + (k + 4 * i) * TDM_LANES)), w_set1(quad));
				}
			acc = lanes_scale(acc, _mm512_add_epi32(sums[0], sums[1]), scales[g], from);
		}
		v_store(c + p * TDM_LANES, acc);
	}
}

// tile_rows carries rows [row, row + VNNI_ROWS), or up to `rows`, of c on by a tile's
// elements.
VEC void tile_rows(tile_vnni_function *const *tiles, const vnni_rows *x, size_t first, const uint8_t *const *w, size_t at, const int32_t *starts, int panels, int row, int rows, float *c) {
	const int some = rows - row < VNNI_ROWS ? rows - row : VNNI_ROWS, wide = some <= VNNI_NARROW ? TDM_UNIT_PANELS : 2;
	for (int p = 0; p < panels; p += wide)
		tiles[some - 1](x, first, w + p, at, starts + p * TDM_LANES, c + (row * TDM_UNIT_PANELS + p) * TDM_LANES);
}

// block_vnni_int8 computes some rows of a unit's `panels` panels into c, from zeros.
static void block_vnni_int8(const int8_t *a, const float *scales, size_t groups, const uint8_t *const *w, int panels, int rows, float *c) {
	_Alignas(64) int32_t starts[TDM_UNIT_PANELS * TDM_LANES];
	_Alignas(64) vnni_rows x;
	for (size_t g = 0; g < groups; g++) {
		starts_vnni(starts, w, g * TDM_GROUP_BYTES);
		for (int r = 0; r < rows; r += VNNI_ROWS) {
			rows_open(&x, rows - r, a + ((size_t)r * groups + g) * TDM_GROUP, scales + (size_t)r * groups + g, groups);
			tile_rows(tiles_vnni_int8, &x, 0, w, g * TDM_GROUP_BYTES, starts, panels, r, rows, c);
		}
	}
}

typedef void thin_vnni_function(const int8_t *a, const float *scales, size_t groups, const uint8_t *const *w, float *c);
typedef void block_vnni_function(const int8_t *a, const float *scales, size_t groups, const uint8_t *const *w, int panels, int rows, float *c);

// product_vnni is a product with groups of so many bytes in a panel. A unit's missing
// panels are its last one, once more: nobody takes what becomes of them.
VEC void product_vnni(const tdm_product *job, int unit, int row0, int row1, size_t bytes, thin_vnni_function *thin, block_vnni_function *block) {
	const int first = unit * TDM_UNIT_PANELS;
	const int panels = job->panels - first < TDM_UNIT_PANELS ? job->panels - first : TDM_UNIT_PANELS;
	const size_t groups = job->groups;
	const uint8_t *w[TDM_UNIT_PANELS];
	_Alignas(64) float c[VNNI_BLOCK * TDM_UNIT_PANELS * TDM_LANES];
	for (int p = 0; p < TDM_UNIT_PANELS; p++)
		w[p] = (const uint8_t *)job->w + (size_t)(first + (p < panels ? p : panels - 1)) * groups * bytes;
	for (int row = row0; row < row1; row += VNNI_BLOCK) {
		const int rows = row1 - row < VNNI_BLOCK ? row1 - row : VNNI_BLOCK;
		const int8_t *a = job->q.values + (size_t)row * groups * TDM_GROUP;
		const float *scales = job->q.scales + (size_t)row * groups;
		memset(c, 0, (size_t)rows * TDM_UNIT_PANELS * TDM_LANES * sizeof *c);
		if (rows == 1)
			thin(a, scales, groups, w, c);
		else
			block(a, scales, groups, w, panels, rows, c);
		for (int r = 0; r < rows; r++)
			finish(job, c + r * TDM_UNIT_PANELS * TDM_LANES, row + r, first, panels);
	}
}

static void product_vnni_int8(const tdm_product *job, int unit, int row0, int row1) {
	product_vnni(job, unit, row0, row1, TDM_GROUP_BYTES, job->in_turn ? thin_vnni_int8_in_turn : thin_vnni_int8, block_vnni_int8);
}
