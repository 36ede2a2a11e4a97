// The product's tile where a pair takes two multiply-adds: activations are
// widened once for all panels of a unit, so that only weights are widened in the
// inner loop.

typedef float operand;

// PRODUCT_BLOCK is the pairs of K that a tile does before it puts its sums down:
// the widened activations stay in the first cache.
#define PRODUCT_BLOCK 256

// operands widens rows of activations from pair k on: for each row the odd
// elements, PRODUCT_BLOCK of them, then the even ones.
VEC const operand *operands(operand *buffer, const uint32_t *a, size_t lda, int rows, size_t k, size_t count, size_t *ldx) {
	*ldx = 2 * PRODUCT_BLOCK;
	for (int r = 0; r < rows; r++) {
		const uint32_t *from = a + (size_t)r * lda + k;
		operand *to = buffer + (size_t)r * 2 * PRODUCT_BLOCK;
		for (size_t i = 0; i < count; i += TDM_LANES) {
			words x = count - i < TDM_LANES ? w_load_first(from + i, (int)(count - i)) : w_load(from + i);
			v_store(to + i, w_odd(x));
			v_store(to + PRODUCT_BLOCK + i, w_even(x));
		}
	}
	return buffer;
}

// row_step carries one row's sums on by an element of K.
VEC void row_step(const int panels, vec *acc, float x, const vec *w) {
	const vec one = v_set1(x);
#pragma GCC unroll 8
	for (int p = 0; p < panels; p++)
		acc[p] = v_fma(one, w[p], acc[p]);
}

// product_tile carries rows x panels of c, [row][TDM_UNIT_PANELS][16], on by
// `count` pairs; at first from zero. Every lane is one output with one chain
// over K, whatever the tile.
VEC void product_tile(const int rows, const int panels, const operand *x, size_t ldx, const uint32_t *w, size_t pairs, size_t count, int first, float *c) {
	vec acc[PRODUCT_ROWS][TDM_UNIT_PANELS];
	// Where registers do not hold both halves of the weights, each is loaded by itself: GCC would
	// keep sums in memory.
	const int apart = panels > PRODUCT_PANELS && PRODUCT_FEW_PANELS == 2;
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
		for (int p = 0; p < panels; p++)
			acc[r][p] = first ? v_zero() : v_load(c + (r * TDM_UNIT_PANELS + p) * TDM_LANES);
	for (size_t k = 0; k < count; k++) {
		vec odd[TDM_UNIT_PANELS], even[TDM_UNIT_PANELS];
#pragma GCC unroll 8
		for (int p = 0; p < panels; p++) {
			words b = w_load_ahead(w + (p * pairs + k) * TDM_LANES);
			odd[p] = w_odd(b);
			even[p] = w_even(b);
		}
#pragma GCC unroll 8
		for (int r = 0; r < rows; r++) {
			row_step(panels, acc[r], x[r * ldx + k], odd);
			if (!apart)
				row_step(panels, acc[r], x[r * ldx + PRODUCT_BLOCK + k], even);
		}
		if (!apart)
			continue;
		__asm__("" ::: "memory");
#pragma GCC unroll 8
		for (int p = 0; p < panels; p++)
			even[p] = w_even(w_load(w + (p * pairs + k) * TDM_LANES));
#pragma GCC unroll 8
		for (int r = 0; r < rows; r++)
			row_step(panels, acc[r], x[r * ldx + PRODUCT_BLOCK + k], even);
	}
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
		for (int p = 0; p < panels; p++)
			v_store(c + (r * TDM_UNIT_PANELS + p) * TDM_LANES, acc[r][p]);
}

// tile_step carries one row's sums of a panel on by pair k.
VEC vec tile_step(vec acc, const operand *x, size_t k, words w) {
	return v_fma(v_set1(x[PRODUCT_BLOCK + k]), w_even(w), v_fma(v_set1(x[k]), w_odd(w), acc));
}
