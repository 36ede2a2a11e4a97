// Products in int8 with AMX, whose tiles are 16 rows of 64 bytes: half a group of 16
// rows of activations, half a group of a panel as it is packed, or 16 x 16 sums in
// int32. Sums are exact, as everywhere in int8, so the tiles change speed and no bit.
// The rows that do not fill 16 are left to VNNI.

enum {
	AMX_ROWS = 16,   // of a tile
	AMX_BLOCK = 96,  // rows that a group's weights are read for, then the next group's
	AMX_HALF = 64    // elements of K in a tile
};

// All of the file's own target too: Clang would take this one instead of it.
#define AMX __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,amx-tile,amx-int8")))

// amx_shape is what ldtilecfg reads: palette 1, and each tile's rows and bytes of one.
typedef struct amx_shape {
	uint8_t palette, start, reserved[14];
	uint16_t bytes[16];
	uint8_t rows[16];
} amx_shape;

// amx_sums are tiles of sums: two blocks of rows by two panels.
typedef struct amx_sums {
	_Alignas(64) int32_t of[2][2][AMX_ROWS][TDM_LANES];
} amx_sums;

// amx_group adds up a group of 16 or 32 rows by two panels.
AMX static inline void amx_group(amx_sums *sums, int wide, const int8_t *a, size_t lda, const uint8_t *w0, const uint8_t *w1) {
	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	for (int k = 0; k < TDM_GROUP; k += AMX_HALF) {
		_tile_loadd(4, a + k, lda);
		_tile_loadd(6, w0 + TDM_LANES * (sizeof(float) + (size_t)k), 64);
		_tile_dpbssd(0, 4, 6);
		_tile_loadd(7, w1 + TDM_LANES * (sizeof(float) + (size_t)k), 64);
		_tile_dpbssd(1, 4, 7);
		if (!wide)
			continue;
		_tile_loadd(5, a + AMX_ROWS * lda + k, lda);
		_tile_dpbssd(2, 5, 6);
		_tile_dpbssd(3, 5, 7);
	}
	_tile_stored(0, sums->of[0][0], 64);
	_tile_stored(1, sums->of[0][1], 64);
	if (!wide)
		return;
	_tile_stored(2, sums->of[1][0], 64);
	_tile_stored(3, sums->of[1][1], 64);
}

// amx_chain carries rows by two panels of c on by a group: its sums and both scales.
VEC void amx_chain(const amx_sums *sums, int rows, const float *scales, size_t groups, const uint8_t *w0, const uint8_t *w1, float *c) {
	const vec s0 = v_load((const float *)w0), s1 = v_load((const float *)w1);
	for (int r = 0; r < rows; r++, c += TDM_UNIT_PANELS * TDM_LANES) {
		const vec scale = v_set1(scales[(size_t)r * groups]);
		const words t0 = _mm512_load_si512(sums->of[r / AMX_ROWS][0][r % AMX_ROWS]), t1 = _mm512_load_si512(sums->of[r / AMX_ROWS][1][r % AMX_ROWS]);
		v_store(c, v_fma(_mm512_cvtepi32_ps(t0), v_mul(scale, s0), v_load(c)));
		v_store(c + TDM_LANES, v_fma(_mm512_cvtepi32_ps(t1), v_mul(scale, s1), v_load(c + TDM_LANES)));
	}
}

// block_amx computes rows, a multiple of 16, by a unit into c. While the sums of one
// part are taken out of their tiles' memory, the next part is in the tiles.
AMX static void block_amx(const tdm_product *job, const uint8_t *const *w, int panels, int row, int rows, float *c) {
	const size_t groups = job->groups, lda = groups * TDM_GROUP;
	const int8_t *a = job->q.values + (size_t)row * lda;
	const float *scales = job->q.scales + (size_t)row * groups;
	amx_sums sums[2];
	memset(c, 0, (size_t)rows * TDM_UNIT_PANELS * TDM_LANES * sizeof *c);
	for (size_t g = 0; g < groups; g++) {
		const size_t at = g * TDM_GROUP_BYTES;
		int turn = 0, last_row = 0, last_panel = 0, last_rows = 0;
		for (int p = 0; p < panels; p += 2)
			for (int r = 0; r < rows; r += 2 * AMX_ROWS) {
				const int some = rows - r < 2 * AMX_ROWS ? rows - r : 2 * AMX_ROWS;
				amx_group(&sums[turn], some > AMX_ROWS, a + (size_t)r * lda + g * TDM_GROUP, lda, w[p] + at, w[p + 1] + at);
				turn ^= 1;
				amx_chain(&sums[turn], last_rows, scales + (size_t)last_row * groups + g, groups, w[last_panel] + at, w[last_panel + 1] + at,
					c + (last_row * TDM_UNIT_PANELS + last_panel) * TDM_LANES);
				last_row = r, last_panel = p, last_rows = some;
			}
		amx_chain(&sums[turn ^ 1], last_rows, scales + (size_t)last_row * groups + g, groups, w[last_panel] + at, w[last_panel + 1] + at,
			c + (last_row * TDM_UNIT_PANELS + last_panel) * TDM_LANES);
	}
}

AMX static void product_amx(const tdm_product *job, int unit, int row0, int row1) {
	const int first = unit * TDM_UNIT_PANELS, full = row0 + (row1 - row0) / AMX_ROWS * AMX_ROWS;
	const int panels = job->panels - first < TDM_UNIT_PANELS ? job->panels - first : TDM_UNIT_PANELS;
	const uint8_t *w[TDM_UNIT_PANELS];
	_Alignas(64) float c[AMX_BLOCK * TDM_UNIT_PANELS * TDM_LANES];
	// A unit's missing panels are its last one, once more: nobody takes what becomes of them.
	for (int p = 0; p < TDM_UNIT_PANELS; p++)
		w[p] = (const uint8_t *)job->w + (size_t)(first + (p < panels ? p : panels - 1)) * job->groups * TDM_GROUP_BYTES;
	if (full > row0) {
		amx_shape shape = {.palette = 1};
		for (int t = 0; t < 8; t++) {
			shape.bytes[t] = 64;
			shape.rows[t] = AMX_ROWS;
		}
		// Not _tile_loadconfig: GCC's tells the compiler of eight of the bytes that it reads.
		__asm__ volatile("ldtilecfg %0" : : "m"(shape));
		for (int row = row0; row < full; row += AMX_BLOCK) {
			const int rows = full - row < AMX_BLOCK ? full - row : AMX_BLOCK;
			block_amx(job, w, panels, row, rows, c);
			for (int r = 0; r < rows; r++)
				finish(job, c + r * TDM_UNIT_PANELS * TDM_LANES, row + r, first, panels);
		}
		_tile_release(); // the kernel need not save tiles that are not in use
	}
	if (full < row1)
		tdm_avx512_product_int8(job, unit, full, row1);
}
