// The product's tile where v_dot is one instruction: pairs of activations are
// broadcast as they are.

typedef uint32_t operand;

// PRODUCT_BLOCK is the pairs of K that a tile does before it puts its sums down.
#define PRODUCT_BLOCK SIZE_MAX

// operands gives rows of activations from pair k on, in the tile's form.
VEC const operand *operands(operand *buffer, const uint32_t *a, size_t lda, int rows, size_t k, size_t count, size_t *ldx) {
	(void)buffer, (void)rows, (void)count;
	*ldx = lda;
	return a + k;
}

// product_tile carries rows x panels of c, [row][TDM_UNIT_PANELS][16], on by
// `count` pairs; at first from zero. Every lane is one output with one chain
// over K, whatever the tile.
VEC void product_tile(const int rows, const int panels, const operand *x, size_t ldx, const uint32_t *w, size_t pairs, size_t count, int first, float *c) {
	vec acc[PRODUCT_ROWS][TDM_UNIT_PANELS];
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
		for (int p = 0; p < panels; p++)
			acc[r][p] = first ? v_zero() : v_load(c + (r * TDM_UNIT_PANELS + p) * TDM_LANES);
	for (size_t k = 0; k < count; k++) {
		words b[TDM_UNIT_PANELS];
#pragma GCC unroll 8
		for (int p = 0; p < panels; p++)
			b[p] = w_load_ahead(w + (p * pairs + k) * TDM_LANES);
#pragma GCC unroll 8
		for (int r = 0; r < rows; r++) {
			words both = w_set1(x[r * ldx + k]);
#pragma GCC unroll 8
			for (int p = 0; p < panels; p++)
				acc[r][p] = v_dot(acc[r][p], both, b[p]);
		}
	}
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
		for (int p = 0; p < panels; p++)
			v_store(c + (r * TDM_UNIT_PANELS + p) * TDM_LANES, acc[r][p]);
}

// tile_step carries one row's sums of a panel on by pair k.
VEC vec tile_step(vec acc, const operand *x, size_t k, words w) { return v_dot(acc, w_set1(x[k]), w); }
