// The splits of an attention item, one after the other or shared among threads, and
// how their results come together. Included once after vec_attention.h.

// opens is whether the split at start is the first one that the row sees.
static int opens(const item *it, int row, int start) { return start <= begin_of(it, row, 0); }

// merge joins the results of the split at start, of n rows from `row` on and of at most
// SCORE_ROWS, to those before it.
static void merge(const item *it, int row, int n, int start, const float *m, const float *l) {
	const int size = it->a->head_size;
	float factors[TDM_LANES] = {0}; // what was there is multiplied with, then what comes
	for (int r = 0; r < n; r++) {
		if (opens(it, row + r, start))
			continue;
		const float old = it->maximum[row + r], both = m[r] > old ? m[r] : old;
		factors[r] = tdm_add(old, -both);
		factors[TDM_LANES / 2 + r] = tdm_add(m[r], -both);
		it->maximum[row + r] = both;
	}
	v_store(factors, v_exp(v_load(factors)));
	for (int r = 0; r < n; r++) {
		const float *from = it->mixed + (size_t)(row + r) * size;
		float *to = it->merged + (size_t)(row + r) * size;
		if (opens(it, row + r, start)) {
			it->maximum[row + r] = m[r];
			it->sum[row + r] = l[r];
			memcpy(to, from, (size_t)size * sizeof *to);
			continue;
		}
		const float keep = factors[r], take = factors[TDM_LANES / 2 + r];
		it->sum[row + r] = tdm_add(tdm_mul(it->sum[row + r], keep), tdm_mul(l[r], take));
		const vec k = v_set1(keep), t = v_set1(take);
		int d = 0;
		for (; d + TDM_LANES <= size; d += TDM_LANES)
			v_store(to + d, v_add(v_mul(v_load(to + d), k), v_mul(v_load(from + d), t)));
		for (; d < size; d++)
			to[d] = tdm_add(tdm_mul(to[d], keep), tdm_mul(from[d], take));
	}
}

// write_out writes what the rows of the item come to.
static void write_out(const item *it, int rows) {
	const int size = it->a->head_size;
	for (int row = 0; row < rows; row++) {
		uint16_t *out = it->a->out + (query(it, row) - it->a->q);
		const float *from = it->merged + (size_t)row * size, scale = 1.0f / it->sum[row];
		int d = 0;
		for (; d + TDM_LANES <= size; d += TDM_LANES)
			v_store_bf16(out + d, v_mul(v_load(from + d), v_set1(scale)), TDM_LANES);
		for (; d < size; d++)
			out[d] = tdm_bf16(tdm_mul(from[d], scale));
	}
}

static item item_of(const tdm_attention *a, int kv_head, int row0, int pos0, int count, float *scratch) {
	const int size = a->head_size, group = a->heads / a->kv_heads, rows = count * group;
	item it = {.a = a, .kv_head = kv_head, .row0 = row0, .pos0 = pos0, .group = group, .windowed = pos0 + count > a->window,
		.stride = TDM_SPLIT, .end = pos0 + count};
	it.scores = scratch;
	it.probabilities = (uint16_t *)(it.scores + (size_t)rows * TDM_SPLIT);
	it.mixed = it.scores + (size_t)rows * (TDM_SPLIT + TDM_SPLIT / 2);
	it.merged = it.mixed + (size_t)rows * size;
	it.maximum = it.merged + (size_t)rows * size;
	it.sum = it.maximum + rows;
	return it;
}

// first_split is where the first split begins that some row sees.
static int first_split(const item *it) {
	const int begin = begin_of(it, 0, 0);
	return begin - begin % TDM_SPLIT;
}

// rows_of_split computes the results of the split at start for rows [row, row+n), n at
// most SCORE_ROWS, into it->mixed, m and l.
static void rows_of_split(const item *it, int row, int n, int start, float *m, float *l) {
	const int codes = it->a->kv == TDM_INT8;
	const rows_functions *f = &functions_of[codes][n - 1];
	float scales[TDM_SPLIT];
	if (codes)
		value_scales(it, start, begin_of(it, row, start), tokens_of(it, row + n - 1, start), scales);
	f->score(it, row, start);
	for (int r = 0; r < n; r++)
		softmax(it, row + r, begin_of(it, row + r, start), tokens_of(it, row + r, start), codes ? scales : NULL, &m[r], &l[r]);
	f->mix(it, row, start);
}

static void attention(const tdm_attention *a, int kv_head, int row0, int pos0, int count, float *scratch) {
	const item it = item_of(a, kv_head, row0, pos0, count, scratch);
	for (int start = first_split(&it); start < pos0 + count; start += TDM_SPLIT) {
		const int last = last_row(&it, count, start);
		for (int row = first_row(&it, start); row < last; row += SCORE_ROWS) {
			int n = last - row < SCORE_ROWS ? last - row : SCORE_ROWS;
			float m[SCORE_ROWS], l[SCORE_ROWS];
			rows_of_split(&it, row, n, start, m, l);
			merge(&it, row, n, start, m, l);
		}
	}
	write_out(&it, count * it.group);
}

// A split's result in memory: what is mixed, [rows][head_size], the maxima, [rows], and
// the sums, [rows].
static float *result_of(const item *it, int rows, int start, float *results) {
	return results + (size_t)(start / TDM_SPLIT) * tdm_attention_result(rows, it->a->head_size);
}

static void attention_part(const tdm_attention *a, int kv_head, int row0, int pos0, int count, int part, int parts, float *results, float *scratch) {
	item it = item_of(a, kv_head, row0, pos0, count, scratch);
	const int rows = count * it.group;
	it.stride = parts * TDM_SPLIT;
	for (int start = first_split(&it); start < pos0 + count; start += TDM_SPLIT) {
		if (start / TDM_SPLIT % parts != part)
			continue;
		it.mixed = result_of(&it, rows, start, results);
		float *m = it.mixed + (size_t)rows * a->head_size, *l = m + rows;
		const int last = last_row(&it, count, start);
		for (int row = first_row(&it, start); row < last; row += SCORE_ROWS)
			rows_of_split(&it, row, last - row < SCORE_ROWS ? last - row : SCORE_ROWS, start, m + row, l + row);
	}
}

static void attention_join(const tdm_attention *a, int kv_head, int row0, int pos0, int count, float *results, float *scratch) {
	item it = item_of(a, kv_head, row0, pos0, count, scratch);
	const int rows = count * it.group;
	for (int start = first_split(&it); start < pos0 + count; start += TDM_SPLIT) {
		it.mixed = result_of(&it, rows, start, results);
		const float *m = it.mixed + (size_t)rows * a->head_size, *l = m + rows;
		const int last = last_row(&it, count, start);
		for (int row = first_row(&it, start); row < last; row += SCORE_ROWS)
			merge(&it, row, last - row < SCORE_ROWS ? last - row : SCORE_ROWS, start, m + row, l + row);
	}
	write_out(&it, rows);
}
