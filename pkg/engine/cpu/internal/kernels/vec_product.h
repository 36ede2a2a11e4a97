// Products over packed panels. Included once by each instruction set's file,
// which sets PRODUCT_ROWS and PRODUCT_PANELS to what its registers hold, PRODUCT_FEW to how
// many rows leave registers for more panels, if any do, and PRODUCT_FEW_PANELS to how many,
// after the tile that suits it: vec_tile_dot.h or vec_tile_widen.h.

typedef void tile_function(const operand *x, size_t ldx, const uint32_t *w, size_t pairs, size_t count, int first, float *c);

#define TILE(rows, panels) \
	static __attribute__((noinline)) void tile_##rows##_##panels(const operand *x, size_t ldx, const uint32_t *w, size_t pairs, size_t count, int first, float *c) { \
		product_tile(rows, panels, x, ldx, w, pairs, count, first, c); \
	}

#define TILES(panels) \
	TILE(1, panels) TILE(2, panels) TILE(3, panels) TILE(4, panels)
TILES(1)
#if PRODUCT_ROWS > 4
TILE(5, 1) TILE(6, 1)
#endif
#if PRODUCT_ROWS > 6
TILE(7, 1) TILE(8, 1)
#endif
#if PRODUCT_FEW_PANELS == 2
TILES(2)
#elif PRODUCT_FEW_PANELS == 4
TILES(4)
#endif
#if PRODUCT_PANELS == 2
TILES(2)
TILE(5, 2) TILE(6, 2) TILE(7, 2) TILE(8, 2)
#elif PRODUCT_PANELS == 4
TILES(4)
TILE(5, 4) TILE(6, 4)
#endif

// tile_thin is one row by a whole unit: four chains, and four streams of weights,
// which some cores read half as fast again as one.
static __attribute__((noinline)) void tile_thin(const operand *x, const uint32_t *w, size_t pairs, size_t count, int first, float *c) {
	vec acc[TDM_UNIT_PANELS];
#pragma GCC unroll 8
	for (int p = 0; p < TDM_UNIT_PANELS; p++)
		acc[p] = first ? v_zero() : v_load(c + p * TDM_LANES);
	for (size_t k = 0; k < count; k++) {
#pragma GCC unroll 8
		for (int p = 0; p < TDM_UNIT_PANELS; p++)
			acc[p] = tile_step(acc[p], x, k, w_load_ahead(w + ((size_t)p * pairs + k) * TDM_LANES));
	}
#pragma GCC unroll 8
	for (int p = 0; p < TDM_UNIT_PANELS; p++)
		v_store(c + p * TDM_LANES, acc[p]);
}

static tile_function *const narrow_tiles[] = {
	tile_1_1, tile_2_1, tile_3_1, tile_4_1,
#if PRODUCT_ROWS > 4
	tile_5_1, tile_6_1,
#endif
#if PRODUCT_ROWS > 6
	tile_7_1, tile_8_1,
#endif
};

// More panels give few rows as many chains as hide the latency of a multiply-add, and
// as many streams of weights.
static tile_function *const few_tiles[] = {
#if PRODUCT_FEW_PANELS == 2
	tile_1_2, tile_2_2, tile_3_2, tile_4_2,
#elif PRODUCT_FEW_PANELS == 4
	tile_1_4, tile_2_4, tile_3_4, tile_4_4,
#else
	NULL,
#endif
};

static tile_function *const wide_tiles[] = {
#if PRODUCT_PANELS == 1
	tile_1_1, tile_2_1, tile_3_1, tile_4_1,
#elif PRODUCT_PANELS == 2
	tile_1_2, tile_2_2, tile_3_2, tile_4_2, tile_5_2, tile_6_2, tile_7_2, tile_8_2,
#else
	tile_1_4, tile_2_4, tile_3_4, tile_4_4, tile_5_4, tile_6_4,
#endif
};

// finish takes one row of c, `panels` panels from `panel` on, where it belongs.
VEC void finish(const tdm_product *job, const float *c, int row, int panel, int panels) {
	const int step = job->mode == TDM_SWIGLU ? 2 : 1;
	for (int p = 0; p < panels; p += step) {
		int n = (panel + p) / step * TDM_LANES, count = job->n - n;
		size_t at = (size_t)row * job->ldo + (size_t)n;
		vec v = v_load(c + p * TDM_LANES);
		if (job->mode == TDM_SWIGLU) {
			v_store_bf16((uint16_t *)job->out + at, v_mul(v_silu(v), v_load(c + (p + 1) * TDM_LANES)), count);
			continue;
		}
		float *out = (float *)job->out + at;
		if (count >= TDM_LANES) {
			v_store(out, job->mode == TDM_ADD ? v_add(v_load(out), v) : v);
			continue;
		}
		float lanes[TDM_LANES];
		v_store(lanes, job->mode == TDM_ADD ? v_add(v_load_first(out, count), v) : v);
		memcpy(out, lanes, (size_t)count * sizeof *out);
	}
}

static void product(const tdm_product *job, int unit, int row0, int row1) {
	const int panel = unit * TDM_UNIT_PANELS;
	const int panels = job->panels - panel < TDM_UNIT_PANELS ? job->panels - panel : TDM_UNIT_PANELS;
	const uint32_t *w = (const uint32_t *)job->w + (size_t)panel * job->pairs * TDM_LANES;
	_Alignas(64) float c[PRODUCT_ROWS * TDM_UNIT_PANELS * TDM_LANES];
	_Alignas(64) operand buffer[PRODUCT_ROWS * 2 * (PRODUCT_BLOCK < SIZE_MAX ? PRODUCT_BLOCK : 1)];
	for (int row = row0; row < row1; row += PRODUCT_ROWS) {
		const int rows = row1 - row < PRODUCT_ROWS ? row1 - row : PRODUCT_ROWS;
		size_t k = 0;
		do {
			size_t count = job->pairs - k < PRODUCT_BLOCK ? job->pairs - k : PRODUCT_BLOCK, ldx;
			const operand *x = operands(buffer, job->a + (size_t)row * job->lda, job->lda, rows, k, count, &ldx);
			if (rows == 1 && panels == TDM_UNIT_PANELS) {
				tile_thin(x, w + k * TDM_LANES, job->pairs, count, k == 0, c);
				k += count;
				continue;
			}
			for (int p = 0; p < panels;) {
				const int few = rows <= PRODUCT_FEW && panels - p >= PRODUCT_FEW_PANELS, wide = panels - p >= PRODUCT_PANELS;
				tile_function *const *tiles = few ? few_tiles : wide ? wide_tiles : narrow_tiles;
				const uint32_t *from = w + ((size_t)p * job->pairs + k) * TDM_LANES;
				tiles[rows - 1](x, ldx, from, job->pairs, count, k == 0, c + p * TDM_LANES);
				p += few ? PRODUCT_FEW_PANELS : wide ? PRODUCT_PANELS : 1;
			}
			k += count;
		} while (k < job->pairs);
		for (int r = 0; r < rows; r++)
			finish(job, c + r * TDM_UNIT_PANELS * TDM_LANES, row + r, panel, panels);
	}
}
