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
	int stride, end; // from a split to the next one, in tokens; where the last one ends
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

VEC const uint8_t *slice(const tdm_attention *a, int pos) {
	return a->slices + (size_t)a->blocks[pos / a->block_tokens] * a->page_bytes;
}

// A slice holds pairs, or codes that become pairs in registers: `codes` says which, and
// is a constant wherever it is an argument.

// lane_bytes is how far the neighbour of a pair lies: the even and the odd codes of pairs
// have rows of their own.
VEC size_t lane_bytes(const int codes) { return codes ? 1 : sizeof(uint32_t); }

// load_pairs loads 16 pairs, or the first `lanes` of them. Of codes, `odd` bytes are
// from the even element of a pair to the odd one.
VEC words load_pairs(const int codes, const int lanes, const uint8_t *at, size_t odd) {
	if (!codes)
		return lanes < TDM_LANES ? w_load_first((const uint32_t *)at, lanes) : w_load((const uint32_t *)at);
	const int8_t *even = (const int8_t *)at;
	if (lanes == TDM_LANES)
		return w_codes(even, even + odd);
	int8_t both[2][TDM_LANES] = {{0}};
	memcpy(both[0], even, (size_t)lanes);
	memcpy(both[1], even + odd, (size_t)lanes);
	return w_codes(both[0], both[1]);
}

// keys_of is the first 16 pairs, or rows of codes, of the keys from position pos on.
VEC const uint8_t *keys_of(const int codes, const item *it, int pos) {
	const tdm_attention *a = it->a;
	const int tokens = a->block_tokens;
	const size_t head = (codes ? 1 : sizeof(uint16_t)) * (size_t)a->head_size * tokens;
	return slice(a, pos) + (size_t)it->kv_head * head + (size_t)(pos % tokens) * lane_bytes(codes);
}

// first_row and last_row bound the rows that see the split at start: earlier ones end
// before it, later ones begin after it.
VEC int first_row(const item *it, int start) { return start > it->pos0 ? (start - it->pos0) * it->group : 0; }

VEC int last_row(const item *it, int count, int start) {
	const int seen = start + TDM_SPLIT + (it->a->window - 1) - it->pos0;
	return (seen < count ? seen : count) * it->group;
}

// keys_ahead is what a tile of scores asks for meanwhile: the keys of the next tile, and the
// values of its own tokens. Nothing is read, so that nothing depends on it but time.
typedef struct keys_ahead {
	const uint8_t *keys, *values;
	size_t bytes; // of each, for every pair of dimensions; 0: nothing
} keys_ahead;

// ahead_of_tile is for a tile of so many tokens. The rows of an item take turns within a split:
// only the first ask.
VEC keys_ahead ahead_of_tile(const int codes, const item *it, int row, int start, int offset, int tokens) {
	const tdm_attention *a = it->a;
	const int pos = start + offset, next = offset + tokens < TDM_SPLIT ? pos + tokens : start + it->stride;
	if (row != first_row(it, start))
		return (keys_ahead){NULL, NULL, 0};
	const size_t bytes = codes ? 1 : sizeof(uint16_t);
	const size_t values = ((size_t)(a->kv_heads + it->kv_head) * a->block_tokens + pos % a->block_tokens) * a->head_size * bytes;
	return (keys_ahead){keys_of(codes, it, next < it->end ? next : pos), slice(a, pos) + values, 2 * (size_t)tokens * bytes};
}

// score_tile scores 16*vectors tokens from position pos on, all in one block.
VEC void score_tile(const int codes, const int rows, const int vectors, const item *it, int row, int start, int offset) {
	const tdm_attention *a = it->a;
	const int half = a->head_size / 2, tokens = a->block_tokens, token = (start + offset) % tokens;
	const size_t bytes = lane_bytes(codes), step = (codes ? 2 : sizeof(uint32_t)) * (size_t)tokens;
	const uint8_t *block = slice(a, start + offset), *k = keys_of(codes, it, start + offset);
	const keys_ahead next = ahead_of_tile(codes, it, row, start, offset, vectors * TDM_LANES);
	const uint32_t *q[SCORE_ROWS];
	vec acc[SCORE_ROWS][SCORE_VECTORS];
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++) {
		q[r] = (const uint32_t *)query(it, row + r);
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++)
			acc[r][v] = v_zero();
	}
	for (int d = 0; d < half; d++, k += step) {
		words b[SCORE_VECTORS];
		for (size_t at = 0; at < next.bytes; at += 64) {
			__builtin_prefetch(next.keys + (size_t)d * step + at, 0, 2);
			__builtin_prefetch(next.values + (size_t)d * next.bytes + at, 0, 2);
			if (codes && tokens >= 64) // the odd dimension's row lies in other lines
				__builtin_prefetch(next.keys + (size_t)d * step + (size_t)tokens, 0, 2);
		}
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++)
			b[v] = load_pairs(codes, TDM_LANES, k + v * TDM_LANES * bytes, (size_t)tokens);
#pragma GCC unroll 8
		for (int r = 0; r < rows; r++) {
			words x = w_set1(q[r][d]);
#pragma GCC unroll 8
			for (int v = 0; v < vectors; v++)
				acc[r][v] = v_dot(acc[r][v], x, b[v]);
		}
	}
	const vec scale = v_set1(a->scale);
	if (codes) {
		const uint16_t *scales = tdm_kv_scales(block, a->kv_heads, a->head_size, tokens, it->kv_head) + token;
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++) {
			const vec by = v_widen(scales + v * TDM_LANES);
#pragma GCC unroll 8
			for (int r = 0; r < rows; r++)
				acc[r][v] = v_mul(acc[r][v], by);
		}
	}
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++)
			v_store(it->scores + (size_t)(row + r) * TDM_SPLIT + offset + v * TDM_LANES, v_mul(acc[r][v], scale));
}

VEC void score_rows(const int codes, const int rows, const item *it, int row, int start) {
	const int n = tokens_of(it, row + rows - 1, start), begin = begin_of(it, row, start);
	const int several = SCORE_VECTORS * TDM_LANES;
	int offset = begin - begin % TDM_LANES;
	if (it->a->block_tokens % several == 0)
		for (offset = begin - begin % several; offset < n; offset += several)
			score_tile(codes, rows, SCORE_VECTORS, it, row, start, offset);
	for (; offset < n; offset += TDM_LANES)
		score_tile(codes, rows, 1, it, row, start, offset);
}

// value_scales are those of the split's tokens from `begin` to n, and of those in the same
// 16, at their places.
static void value_scales(const item *it, int start, int begin, int n, float *scales) {
	const tdm_attention *a = it->a;
	for (int t = begin - begin % TDM_LANES; t < n; t += TDM_LANES) {
		const uint16_t *from = tdm_kv_scales(slice(a, start + t), a->kv_heads, a->head_size, a->block_tokens, a->kv_heads + it->kv_head);
		v_store(scales + t, v_widen(from + (start + t) % a->block_tokens));
	}
}

// softmax turns one row's scores, from `begin` to n, into probabilities; those
// before and after, in the same 16, become zero. With scales, those of values in codes,
// probabilities are multiplied by them, and the sum is of what they were.
static void softmax(const item *it, int row, int begin, int n, const float *scales, float *maximum, float *sum) {
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
		if (scales) {
			l = v_add(l, x);
			v_store_high(p + t, v_round(v_first(v_mul(x, v_load(scales + t)), n - t, v_zero())));
			continue;
		}
		words rounded = v_round(x);
		l = v_add(l, v_as_float(rounded));
		v_store_high(p + t, rounded);
	}
	memset(p + from, 0, (size_t)(begin - from) * sizeof *p); // whatever the scales were
	*maximum = m;
	*sum = v_sum(l);
}

// Which tokens of a pair of values a row sees. What a page holds of the others
// may be anything, and must not be touched.
enum { SEES_BOTH, SEES_EVEN, SEES_ODD };

// mix_pairs adds pairs [from, to) of values to `mixed`, or if `fresh` to zero,
// for 16*vectors dimensions from d on, or for the first `lanes` of 16.
VEC void mix_pairs(const int codes, const int rows, const int vectors, const int lanes, const item *it, int row, int start, int from, int to, int fresh, int d, const int sees) {
	const tdm_attention *a = it->a;
	const int size = a->head_size, block_pairs = a->block_tokens / 2;
	const size_t bytes = lane_bytes(codes), step = (codes ? 2 : sizeof(uint32_t)) * (size_t)size;
	const size_t values = (size_t)(a->kv_heads + it->kv_head) * block_pairs * step + d * bytes;
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
		const uint8_t *w = slice(a, start + 2 * from) + values + pair * step;
		if (end > to)
			end = to;
		for (; from < end; from++, w += step) {
			words b[MIX_VECTORS];
#pragma GCC unroll 8
			for (int v = 0; v < vectors; v++) {
				b[v] = load_pairs(codes, lanes, w + v * TDM_LANES * bytes, (size_t)size);
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

VEC void mix_range(const int codes, const int rows, const item *it, int row, int start, int from, int to, int fresh, const int sees) {
	int d = 0;
	for (; d + MIX_VECTORS * TDM_LANES <= it->a->head_size; d += MIX_VECTORS * TDM_LANES)
		mix_pairs(codes, rows, MIX_VECTORS, TDM_LANES, it, row, start, from, to, fresh, d, sees);
	for (; d + TDM_LANES <= it->a->head_size; d += TDM_LANES)
		mix_pairs(codes, rows, 1, TDM_LANES, it, row, start, from, to, fresh, d, sees);
	if (d < it->a->head_size)
		mix_pairs(codes, rows, 1, it->a->head_size - d, it, row, start, from, to, fresh, d, sees);
}

// mix_some mixes tokens [from, to) of the split for one row.
VEC void mix_some(const int codes, const item *it, int row, int start, int from, int to, int fresh) {
	if (from % 2 && from < to) {
		mix_range(codes, 1, it, row, start, from / 2, from / 2 + 1, fresh, SEES_ODD);
		from++;
		fresh = 0;
	}
	if (from / 2 < to / 2) {
		mix_range(codes, 1, it, row, start, from / 2, to / 2, fresh, SEES_BOTH);
		fresh = 0;
	}
	if (to % 2 && from < to)
		mix_range(codes, 1, it, row, start, to / 2, to / 2 + 1, fresh, SEES_EVEN);
}

static void mix_pairs_of_one(const item *it, int row, int start, int from, int to, int fresh) { mix_some(0, it, row, start, from, to, fresh); }
static void mix_codes_of_one(const item *it, int row, int start, int from, int to, int fresh) { mix_some(1, it, row, start, from, to, fresh); }

VEC void mix_one(const int codes, const item *it, int row, int start, int from, int to, int fresh) {
	(codes ? mix_codes_of_one : mix_pairs_of_one)(it, row, start, from, to, fresh);
}

// mix_rows: the first row's tokens end first, the last row's begin last; the pairs
// that all rows see are shared, those before and after are each row's own.
VEC void mix_rows(const int codes, const int rows, const item *it, int row, int start) {
	const int begin = begin_of(it, row + rows - 1, start);
	const int from = begin + begin % 2, end = tokens_of(it, row, start), to = end - end % 2;
	if (from >= to) {
		for (int r = 0; r < rows; r++)
			mix_one(codes, it, row + r, start, begin_of(it, row + r, start), tokens_of(it, row + r, start), 1);
		return;
	}
	if (from > 0)
		for (int r = 0; r < rows; r++) {
			memset(it->mixed + (size_t)(row + r) * it->a->head_size, 0, (size_t)it->a->head_size * sizeof *it->mixed);
			mix_one(codes, it, row + r, start, begin_of(it, row + r, start), from, 0);
		}
	mix_range(codes, rows, it, row, start, from / 2, to / 2, from == 0, SEES_BOTH);
	for (int r = 0; r < rows; r++)
		mix_one(codes, it, row + r, start, to, tokens_of(it, row + r, start), 0);
}

#define ROWS(n) \
	static __attribute__((noinline)) void score_pairs_##n(const item *it, int row, int start) { score_rows(0, n, it, row, start); } \
	static __attribute__((noinline)) void mix_pairs_##n(const item *it, int row, int start) { mix_rows(0, n, it, row, start); } \
	static __attribute__((noinline)) void score_codes_##n(const item *it, int row, int start) { score_rows(1, n, it, row, start); } \
	static __attribute__((noinline)) void mix_codes_##n(const item *it, int row, int start) { mix_rows(1, n, it, row, start); }
ROWS(1) ROWS(2) ROWS(3) ROWS(4)
#if SCORE_ROWS > 4
ROWS(5) ROWS(6)
#endif

// What computes up to SCORE_ROWS rows of a split, over pairs, then over codes.
typedef void rows_function(const item *it, int row, int start);
typedef struct rows_functions {
	rows_function *score, *mix;
} rows_functions;
static const rows_functions functions_of[2][SCORE_ROWS] = {
	{
		{score_pairs_1, mix_pairs_1}, {score_pairs_2, mix_pairs_2}, {score_pairs_3, mix_pairs_3}, {score_pairs_4, mix_pairs_4},
#if SCORE_ROWS > 4
		{score_pairs_5, mix_pairs_5}, {score_pairs_6, mix_pairs_6},
#endif
	},
	{
		{score_codes_1, mix_codes_1}, {score_codes_2, mix_codes_2}, {score_codes_3, mix_codes_3}, {score_codes_4, mix_codes_4},
#if SCORE_ROWS > 4
		{score_codes_5, mix_codes_5}, {score_codes_6, mix_codes_6},
#endif
	},
};
