// The splits of an attention item, one after the other or shared among threads, and
// how their results come together. Included once after vec_attention.h.

// merge joins a split's result to those before it.
static void merge(const item *it, int row, float m, float l, int first) {
	const int size = it->a->head_size;
	const float *from = it->mixed + (size_t)row * size;
	float *to = it->merged + (size_t)row * size;
	if (first) {
		it->maximum[row] = m;
		it->sum[row] = l;
		memcpy(to, from, (size_t)size * sizeof *to);
		return;
	}
	float both = m > it->maximum[row] ? m : it->maximum[row];
	float keep = tdm_exp(tdm_add(it->maximum[row], -both)), take = tdm_exp(tdm_add(m, -both));
	it->sum[row] = tdm_add(tdm_mul(it->sum[row], keep), tdm_mul(l, take));
	it->maximum[row] = both;
	const vec k = v_set1(keep), t = v_set1(take);
	int d = 0;
	for (; d + TDM_LANES <= size; d += TDM_LANES)
		v_store(to + d, v_add(v_mul(v_load(to + d), k), v_mul(v_load(from + d), t)));
	for (; d < size; d++)
		to[d] = tdm_add(tdm_mul(to[d], keep), tdm_mul(from[d], take));
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
	item it = {.a = a, .kv_head = kv_head, .row0 = row0, .pos0 = pos0, .group = group, .windowed = pos0 + count > a->window};
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

// first_row and last_row bound the rows that see the split at start: earlier ones end
// before it, later ones begin after it.
static int first_row(const item *it, int start) { return start > it->pos0 ? (start - it->pos0) * it->group : 0; }

static int last_row(const item *it, int count, int start) {
	const int seen = start + TDM_SPLIT + (it->a->window - 1) - it->pos0;
	return (seen < count ? seen : count) * it->group;
}

// opens is whether the split at start is the first one that the row sees.
static int opens(const item *it, int row, int start) { return start <= begin_of(it, row, 0); }

// rows_of_split computes the results of the split at start for rows [row, row+n), n at
// most SCORE_ROWS, into it->mixed, m and l.
static void rows_of_split(const item *it, int row, int n, int start, float *m, float *l) {
	score_functions[n - 1](it, row, start);
	for (int r = 0; r < n; r++)
		softmax(it, row + r, begin_of(it, row + r, start), tokens_of(it, row + r, start), &m[r], &l[r]);
	mix_functions[n - 1](it, row, start);
}

static void attention(const tdm_attention *a, int kv_head, int row0, int pos0, int count, float *scratch) {
	const item it = item_of(a, kv_head, row0, pos0, count, scratch);
	for (int start = first_split(&it); start < pos0 + count; start += TDM_SPLIT) {
		const int last = last_row(&it, count, start);
		for (int row = first_row(&it, start); row < last; row += SCORE_ROWS) {
			int n = last - row < SCORE_ROWS ? last - row : SCORE_ROWS;
			float m[SCORE_ROWS], l[SCORE_ROWS];
			rows_of_split(&it, row, n, start, m, l);
			for (int r = 0; r < n; r++)
				merge(&it, row + r, m[r], l[r], opens(&it, row + r, start));
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
		for (int row = first_row(&it, start); row < last; row++)
			merge(&it, row, m[row], l[row], opens(&it, row, start));
	}
	write_out(&it, rows);
}
