// Attention over pages. Included once by each instruction set's file, which
// sets SCORE_ROWS, SCORE_VECTORS and MIX_VECTORS to what its registers hold. This is
// what happens within a split; vec_join.h has how splits come together.
//
// The rows of an item are token-major: row i*group+g is query head g of token i.

// item is what the steps of one attention item share.
typedef struct item {
	const tdm_attention *a;
	int kv_head, row0, pos0, group;
	int windowed; // whether some row does not see the first token
	float *scores;           // [rows][TDM_SPLIT]
	uint16_t *probabilities; // [rows][TDM_SPLIT]
	float *mixed, *merged;   // [rows][head_size]
	float *maximum, *sum;    // [rows]
} item;

VEC const uint16_t *query(const item *it, int row) {
	return it->a->q + (size_t)(it->row0 + row / it->group) * it->a->ldq +
		(size_t)(it->kv_head * it->group + row % it->group) * it->a->head_size;
}

VEC int position(const item *it, int row) { return it->pos0 + row / it->group; }

// tokens_of is how many tokens of the split at start the row sees.
VEC int tokens_of(const item *it, int row, int start) {
	int n = position(it, row) + 1 - start;
	return n < TDM_SPLIT ? n : TDM_SPLIT;
}

// begin_of is the first token of the split at start that the row sees, from the
// split's start.
VEC int begin_of(const item *it, int row, int start) {
	int n = it->windowed ? position(it, row) + 1 - it->a->window - start : 0;
	return n > 0 ? n : 0;
}

VEC const uint32_t *slice(const tdm_attention *a, int pos) {
	return (const uint32_t *)(a->slices + (size_t)a->blocks[pos / a->block_tokens] * a->page_bytes);
}

// score_tile scores 16*vectors tokens from position pos on, all in one block.
VEC void score_tile(const int rows, const int vectors, const item *it, int row, int start, int offset) {
	const tdm_attention *a = it->a;
	const int half = a->head_size / 2, tokens = a->block_tokens;
	const uint32_t *k = slice(a, start + offset) + (size_t)it->kv_head * half * tokens + (start + offset) % tokens;
	const uint32_t *q[SCORE_ROWS];
	vec acc[SCORE_ROWS][SCORE_VECTORS];
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++) {
		q[r] = (const uint32_t *)query(it, row + r);
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++)
			acc[r][v] = v_zero();
	}
	for (int d = 0; d < half; d++, k += tokens) {
		words b[SCORE_VECTORS];
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++)
			b[v] = w_load(k + v * TDM_LANES);
#pragma GCC unroll 8
		for (int r = 0; r < rows; r++) {
			words x = w_set1(q[r][d]);
#pragma GCC unroll 8
			for (int v = 0; v < vectors; v++)
				acc[r][v] = v_dot(acc[r][v], x, b[v]);
		}
	}
	const vec scale = v_set1(a->scale);
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++)
			v_store(it->scores + (size_t)(row + r) * TDM_SPLIT + offset + v * TDM_LANES, v_mul(acc[r][v], scale));
}

VEC void score_rows(const int rows, const item *it, int row, int start) {
	const int n = tokens_of(it, row + rows - 1, start), begin = begin_of(it, row, start);
	int offset = begin - begin % TDM_LANES;
	if (it->a->block_tokens % (SCORE_VECTORS * TDM_LANES) == 0)
		for (offset = begin - begin % (SCORE_VECTORS * TDM_LANES); offset < n; offset += SCORE_VECTORS * TDM_LANES)
			score_tile(rows, SCORE_VECTORS, it, row, start, offset);
	for (; offset < n; offset += TDM_LANES)
		score_tile(rows, 1, it, row, start, offset);
}

// softmax turns one row's scores, from `begin` to n, into probabilities; those
// before and after, in the same 16, become zero.
static void softmax(const item *it, int row, int begin, int n, float *maximum, float *sum) {
	float *s = it->scores + (size_t)row * TDM_SPLIT;
	uint16_t *p = it->probabilities + (size_t)row * TDM_SPLIT;
	vec best = v_set1(-INFINITY);
	const int from = begin - begin % TDM_LANES;
	for (int t = from; t < begin; t++)
		s[t] = -INFINITY; // whose exponential is zero
	for (int t = from; t < n; t += TDM_LANES) {
		vec x = v_first(v_load(s + t), n - t, v_set1(-INFINITY));
		best = v_max(best, x);
	}
	float lanes[TDM_LANES], m = -INFINITY;
	v_store(lanes, best);
	for (int l = 0; l < TDM_LANES; l++)
		m = lanes[l] > m ? lanes[l] : m;
	const vec all = v_set1(m);
	vec l = v_zero();
	for (int t = from; t < n; t += TDM_LANES) {
		vec x = v_first(v_exp(v_sub(v_load(s + t), all)), n - t, v_zero());
		words rounded = v_round(x);
		l = v_add(l, v_as_float(rounded));
		v_store_high(p + t, rounded);
	}
	*maximum = m;
	*sum = v_sum(l);
}

// Which tokens of a pair of values a row sees. What a page holds of the others
// may be anything, and must not be touched.
enum { SEES_BOTH, SEES_EVEN, SEES_ODD };

// mix_pairs adds pairs [from, to) of values to `mixed`, or if `fresh` to zero,
// for 16*vectors dimensions from d on, or for the first `lanes` of 16.
VEC void mix_pairs(const int rows, const int vectors, const int lanes, const item *it, int row, int start, int from, int to, int fresh, int d, const int sees) {
	const tdm_attention *a = it->a;
	const int size = a->head_size, block_pairs = a->block_tokens / 2;
	const size_t values = (size_t)(a->kv_heads + it->kv_head) * block_pairs * size + d;
	const uint32_t *p = (const uint32_t *)it->probabilities + (size_t)row * (TDM_SPLIT / 2);
	float *mixed = it->mixed + (size_t)row * size + d;
	vec acc[SCORE_ROWS][MIX_VECTORS];
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++) {
			const float *at = mixed + (size_t)r * size + v * TDM_LANES;
			acc[r][v] = fresh ? v_zero() : lanes < TDM_LANES ? v_load_first(at, lanes) : v_load(at);
		}
	while (from < to) {
		int pair = from % block_pairs, end = from - pair + block_pairs;
		const uint32_t *w = slice(a, start + 2 * from) + values + (size_t)pair * size;
		if (end > to)
			end = to;
		for (; from < end; from++, w += size) {
			words b[MIX_VECTORS];
#pragma GCC unroll 8
			for (int v = 0; v < vectors; v++) {
				b[v] = lanes < TDM_LANES ? w_load_first(w, lanes) : w_load(w + v * TDM_LANES);
				if (sees == SEES_EVEN)
					b[v] = w_even_only(b[v]);
				if (sees == SEES_ODD)
					b[v] = w_odd_only(b[v]);
			}
#pragma GCC unroll 8
			for (int r = 0; r < rows; r++) {
				words x = w_set1(p[(size_t)r * (TDM_SPLIT / 2) + from]);
#pragma GCC unroll 8
				for (int v = 0; v < vectors; v++)
					acc[r][v] = v_dot(acc[r][v], x, b[v]);
			}
		}
	}
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++) {
			float *at = mixed + (size_t)r * size + v * TDM_LANES;
			v_store_first(at, acc[r][v], lanes);
		}
}

VEC void mix_range(const int rows, const item *it, int row, int start, int from, int to, int fresh, const int sees) {
	int d = 0;
	for (; d + MIX_VECTORS * TDM_LANES <= it->a->head_size; d += MIX_VECTORS * TDM_LANES)
		mix_pairs(rows, MIX_VECTORS, TDM_LANES, it, row, start, from, to, fresh, d, sees);
	for (; d + TDM_LANES <= it->a->head_size; d += TDM_LANES)
		mix_pairs(rows, 1, TDM_LANES, it, row, start, from, to, fresh, d, sees);
	if (d < it->a->head_size)
		mix_pairs(rows, 1, it->a->head_size - d, it, row, start, from, to, fresh, d, sees);
}

// mix_one mixes tokens [from, to) of the split for one row.
static void mix_one(const item *it, int row, int start, int from, int to, int fresh) {
	if (from % 2 && from < to) {
		mix_range(1, it, row, start, from / 2, from / 2 + 1, fresh, SEES_ODD);
		from++;
		fresh = 0;
	}
	if (from / 2 < to / 2) {
		mix_range(1, it, row, start, from / 2, to / 2, fresh, SEES_BOTH);
		fresh = 0;
	}
	if (to % 2 && from < to)
		mix_range(1, it, row, start, to / 2, to / 2 + 1, fresh, SEES_EVEN);
}

// mix_rows: the first row's tokens end first, the last row's begin last; the pairs
// that all rows see are shared, those before and after are each row's own.
VEC void mix_rows(const int rows, const item *it, int row, int start) {
	const int begin = begin_of(it, row + rows - 1, start);
	const int from = begin + begin % 2, end = tokens_of(it, row, start), to = end - end % 2;
	if (from >= to) {
		for (int r = 0; r < rows; r++)
			mix_one(it, row + r, start, begin_of(it, row + r, start), tokens_of(it, row + r, start), 1);
		return;
	}
	if (from > 0)
		for (int r = 0; r < rows; r++) {
			memset(it->mixed + (size_t)(row + r) * it->a->head_size, 0, (size_t)it->a->head_size * sizeof *it->mixed);
			mix_one(it, row + r, start, begin_of(it, row + r, start), from, 0);
		}
	mix_range(rows, it, row, start, from / 2, to / 2, from == 0, SEES_BOTH);
	for (int r = 0; r < rows; r++)
		mix_one(it, row + r, start, to, tokens_of(it, row + r, start), 0);
}

#define ROWS(n) \
	static __attribute__((noinline)) void score_##n(const item *it, int row, int start) { score_rows(n, it, row, start); } \
	static __attribute__((noinline)) void mix_##n(const item *it, int row, int start) { mix_rows(n, it, row, start); }
ROWS(1) ROWS(2) ROWS(3) ROWS(4)
#if SCORE_ROWS > 4
ROWS(5) ROWS(6)
#endif

typedef void rows_function(const item *it, int row, int start);
static rows_function *const score_functions[] = {
	score_1, score_2, score_3, score_4,
#if SCORE_ROWS > 4
	score_5, score_6,
#endif
};
static rows_function *const mix_functions[] = {
	mix_1, mix_2, mix_3, mix_4,
#if SCORE_ROWS > 4
	mix_5, mix_6,
#endif
};
