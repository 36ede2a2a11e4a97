// The arithmetic class as plain C: every other implementation is tested against
// this one, bit for bit. It is the only one on processors other than x86-64.

#include "tdm_int4.h"
#include "tdm_kernels.h"
#include "tdm_kv.h"
#include "tdm_quantize.h"
#include "tdm_scalar.h"

static float silu(float x) {
	float e = tdm_add(1.0f, tdm_exp(-x));
	return tdm_mul(x, 1.0f / e);
}

static float chain(const tdm_product *p, int row, int panel, int lane) {
	const uint32_t *a = p->a + (size_t)row * p->lda;
	const uint32_t *w = (const uint32_t *)p->w + (size_t)panel * p->pairs * TDM_LANES + lane;
	float acc = 0;
	for (size_t k = 0; k < p->pairs; k++)
		acc = tdm_dot(acc, a[k], w[k * TDM_LANES]);
	return acc;
}

// chain_int8 is the chain over groups; a group's sum is exact.
static float chain_int8(const tdm_product *p, int row, int panel, int lane) {
	const int8_t *a = p->q.values + (size_t)row * p->groups * TDM_GROUP;
	const float *scales = p->q.scales + (size_t)row * p->groups;
	const uint8_t *w = (const uint8_t *)p->w + (size_t)panel * p->groups * TDM_GROUP_BYTES;
	float acc = 0;
	for (size_t g = 0; g < p->groups; g++, a += TDM_GROUP, w += TDM_GROUP_BYTES) {
		const int8_t *values = (const int8_t *)(w + TDM_LANES * sizeof(float));
		float scale;
		memcpy(&scale, w + (size_t)lane * sizeof scale, sizeof scale);
		int32_t sum = 0;
		for (int k = 0; k < TDM_GROUP; k++)
			sum += a[k] * values[(k / 4 * TDM_LANES + lane) * 4 + k % 4];
		acc = tdm_fma((float)sum, tdm_mul(scales[g], scale), acc);
	}
	return acc;
}

// chain_int4 is the chain over groups of 32; a group's sum is exact.
static float chain_int4(const tdm_product *p, int row, int panel, int lane) {
	static const int8_t values[] = {TDM_INT4_VALUES};
	const int8_t *a = p->q.values + (size_t)row * p->groups * TDM_GROUP;
	const float *scales = p->q.scales + (size_t)row * p->groups;
	const uint8_t *w = (const uint8_t *)p->w + (size_t)panel * p->groups * TDM_INT4_BYTES;
	float acc = 0;
	for (size_t g = 0; g < p->groups; g++, a += TDM_GROUP, w += TDM_INT4_BYTES) {
		const uint8_t *codes = w + TDM_INT4_SCALES_BYTES;
		for (int first = 0; first < TDM_GROUP; first += TDM_INT4_GROUP) {
			uint16_t scale;
			memcpy(&scale, w + (size_t)(first / TDM_INT4_GROUP * TDM_LANES + lane) * sizeof scale, sizeof scale);
			int32_t sum = 0;
			for (int k = first; k < first + TDM_INT4_GROUP; k++)
				sum += a[k] * values[codes[(k / 8 * TDM_LANES + lane) * 4 + k % 4] >> (k & 4) & 15];
			acc = tdm_fma((float)sum, tdm_mul(scales[g], tdm_widen(scale)), acc);
		}
	}
	return acc;
}

typedef float chain_function(const tdm_product *p, int row, int panel, int lane);

static void run_product(const tdm_product *p, int unit, int row0, int row1, chain_function *chain) {
	int first = unit * TDM_UNIT_PANELS, last = first + TDM_UNIT_PANELS;
	if (last > p->panels)
		last = p->panels;
	int step = p->mode == TDM_SWIGLU ? 2 : 1;
	for (int panel = first; panel < last; panel += step) {
		for (int lane = 0; lane < TDM_LANES; lane++) {
			int n = panel / step * TDM_LANES + lane;
			if (n >= p->n)
				break;
			for (int row = row0; row < row1; row++) {
				size_t at = (size_t)row * p->ldo + (size_t)n;
				float c = chain(p, row, panel, lane);
				if (p->mode == TDM_STORE)
					((float *)p->out)[at] = c;
				else if (p->mode == TDM_ADD)
					((float *)p->out)[at] = tdm_add(((float *)p->out)[at], c);
				else
					((uint16_t *)p->out)[at] = tdm_bf16(tdm_mul(silu(c), chain(p, row, panel + 1, lane)));
			}
		}
	}
}

static void product(const tdm_product *p, int unit, int row0, int row1) { run_product(p, unit, row0, row1, chain); }

static void product_int8(const tdm_product *p, int unit, int row0, int row1) { run_product(p, unit, row0, row1, chain_int8); }

static void product_int4(const tdm_product *p, int unit, int row0, int row1) { run_product(p, unit, row0, row1, chain_int4); }

static void quantize(int8_t *values, float *scales, const uint16_t *x, int n) { tdm_quantize(values, scales, x, n); }

static float rms_scale(const float *x, int n, float inv_n, float eps) {
	float lanes[TDM_LANES] = {0};
	for (int i = 0; i < n; i++)
		lanes[i % TDM_LANES] = tdm_fma(x[i], x[i], lanes[i % TDM_LANES]);
	float mean = tdm_mul(tdm_tree(lanes), inv_n);
	return 1.0f / sqrtf(tdm_add(mean, eps));
}

static void norm(uint16_t *out, const float *x, const float *weight, int n, float inv_n, float eps) {
	float scale = rms_scale(x, n, inv_n, eps);
	for (int i = 0; i < n; i++)
		out[i] = tdm_bf16(tdm_mul(tdm_mul(x[i], scale), weight[i]));
}

static void adjust(const tdm_rows *r, int row) {
	const int size = r->head_size, heads = r->heads + 2 * r->kv_heads;
	float *x = r->qkv + (size_t)row * r->ld_qkv;
	if (r->bias)
		for (int i = 0; i < heads * size; i++)
			x[i] = tdm_add(x[i], r->bias[i]);
	if (!r->q_norm)
		return;
	for (int h = 0; h < r->heads + r->kv_heads; h++, x += size) {
		const float *weight = h < r->heads ? r->q_norm : r->k_norm;
		float scale = rms_scale(x, size, 1.0f / (float)size, r->norm_eps);
		for (int i = 0; i < size; i++)
			x[i] = tdm_mul(tdm_mul(x[i], scale), weight[i]);
	}
}

static void rotate_head(const float *x, const float *cos, const float *sin, int half, int i, float *low, float *high) {
	*low = tdm_add(tdm_mul(x[i], cos[i]), -tdm_mul(x[i + half], sin[i]));
	*high = tdm_add(tdm_mul(x[i + half], cos[i]), tdm_mul(x[i], sin[i]));
}

// quantize_head writes the codes of a head, `stride` bytes apart, and returns its scale.
static uint16_t quantize_head(const float *x, int size, int8_t *codes, size_t stride) {
	float largest = 0, reciprocal;
	int finite = 1;
	for (int i = 0; i < size; i++) {
		largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
		finite &= fabsf(x[i]) <= FLT_MAX;
	}
	const uint16_t scale = tdm_kv_scale(largest, finite, &reciprocal);
	for (int i = 0; i < size; i++)
		codes[(size_t)i * stride] = reciprocal == 0 ? 0 : tdm_int8(x[i], reciprocal);
	return scale;
}

// rotate_in_place rotates a head.
static void rotate_in_place(float *x, const float *cos, const float *sin, int half) {
	for (int i = 0; i < half; i++) {
		float low, high;
		rotate_head(x, cos, sin, half, i, &low, &high);
		x[i] = low;
		x[i + half] = high;
	}
}

// write_codes writes one token's rotated key and its value in int8.
static void write_codes(const tdm_rows *r, const float *x, uint8_t *slice, int token) {
	const size_t size = (size_t)r->head_size, tokens = (size_t)r->block_tokens, heads = (size_t)r->kv_heads;
	int8_t *keys = (int8_t *)slice, *values = keys + heads * size * tokens;
	uint16_t *scales = tdm_kv_scales(slice, r->kv_heads, r->head_size, r->block_tokens, 0) + token;
	for (size_t h = 0; h < heads; h++, x += size)
		scales[h * tokens] = quantize_head(x, r->head_size, keys + h * size * tokens + token, tokens);
	for (size_t h = 0; h < heads; h++, x += size)
		scales[(heads + h) * tokens] = quantize_head(x, r->head_size, values + (h * tokens + (size_t)token) * size, 1);
}

// rotate_pairs writes one token's key and value as bf16.
static void rotate_pairs(const tdm_rows *r, const float *x, const float *cos, const float *sin, uint8_t *slice, int token) {
	const int size = r->head_size, half = size / 2, tokens = r->block_tokens;
	uint16_t *keys = (uint16_t *)slice;
	uint16_t *values = keys + (size_t)r->kv_heads * tokens * size;
	float low, high;
	for (int h = 0; h < r->kv_heads; h++, x += size, keys += (size_t)tokens * size)
		for (int i = 0; i < half; i++) {
			rotate_head(x, cos, sin, half, i, &low, &high);
			int j = i + half;
			keys[((size_t)(i / 2) * tokens + token) * 2 + i % 2] = tdm_bf16(low);
			keys[((size_t)(j / 2) * tokens + token) * 2 + j % 2] = tdm_bf16(high);
		}
	for (int h = 0; h < r->kv_heads; h++, x += size, values += (size_t)tokens * size)
		for (int i = 0; i < size; i++)
			values[((size_t)(token / 2) * size + i) * 2 + token % 2] = tdm_bf16(x[i]);
}

static void rotate(const tdm_rows *r, int row, uint8_t *slice, uint8_t *mirror, int token) {
	const int size = r->head_size, half = size / 2;
	float *x = r->qkv + (size_t)row * r->ld_qkv;
	const float *cos = r->cos + (size_t)row * half, *sin = r->sin + (size_t)row * half;
	uint16_t *q = r->q + (size_t)row * r->ldq;
	float low, high;
	for (int h = 0; h < r->heads; h++, x += size, q += size)
		for (int i = 0; i < half; i++) {
			rotate_head(x, cos, sin, half, i, &low, &high);
			q[i] = tdm_bf16(low);
			q[i + half] = tdm_bf16(high);
		}
	if (r->kv == TDM_INT8)
		for (int h = 0; h < r->kv_heads; h++)
			rotate_in_place(x + h * size, cos, sin, half);
	for (; slice; slice = mirror, mirror = NULL)
		if (r->kv == TDM_INT8)
			write_codes(r, x, slice, token);
		else
			rotate_pairs(r, x, cos, sin, slice, token);
}

static const uint8_t *slice_of(const tdm_attention *a, int position) {
	return a->slices + (size_t)a->blocks[position / a->block_tokens] * a->page_bytes;
}

// pair_of makes a pair of two codes, which are exact in bf16.
static uint32_t pair_of(int8_t even, int8_t odd) { return tdm_bf16(even) | (uint32_t)tdm_bf16(odd) << 16; }

// scale_of is the scale of a token's key in int8, or with the number of KV heads added of
// its value.
static float scale_of(const tdm_attention *a, int kv_head, int position) {
	return tdm_widen(tdm_kv_scales(slice_of(a, position), a->kv_heads, a->head_size, a->block_tokens, kv_head)[position % a->block_tokens]);
}

// value_pair reads the values of tokens `position`, even, and the next; one that
// the query does not see is zero: what a page holds there may be anything.
static uint32_t value_pair(const tdm_attention *a, int kv_head, int position, int d, int first, int second) {
	const size_t size = (size_t)a->head_size, token = (size_t)(position % a->block_tokens);
	const size_t head = (size_t)(a->kv_heads + kv_head) * (size_t)a->block_tokens * size; // elements before it
	uint32_t pair;
	if (a->kv == TDM_INT8) {
		const int8_t *values = (const int8_t *)slice_of(a, position) + head + token * size + d;
		pair = pair_of(values[0], values[size]);
	} else {
		pair = ((const uint32_t *)slice_of(a, position))[head / 2 + token / 2 * size + d];
	}
	return (first ? pair & 0xffff : 0) | (second ? pair & 0xffff0000u : 0);
}

// key_pair reads dimensions 2d and 2d+1 of a key.
static uint32_t key_pair(const tdm_attention *a, int kv_head, int position, size_t d) {
	const size_t tokens = (size_t)a->block_tokens, token = (size_t)position % tokens;
	const size_t head = (size_t)kv_head * tokens * (size_t)a->head_size;
	if (a->kv == TDM_INT8) {
		const int8_t *keys = (const int8_t *)slice_of(a, position) + head + 2 * d * tokens + token;
		return pair_of(keys[0], keys[tokens]);
	}
	return ((const uint32_t *)slice_of(a, position))[head / 2 + d * tokens + token];
}

static float score(const tdm_attention *a, const uint16_t *q, int kv_head, int position) {
	float acc = 0;
	for (int d = 0; d < a->head_size / 2; d++)
		acc = tdm_dot(acc, (uint32_t)q[2 * d + 1] << 16 | q[2 * d], key_pair(a, kv_head, position, (size_t)d));
	if (a->kv == TDM_INT8)
		acc = tdm_mul(acc, scale_of(a, kv_head, position));
	return tdm_mul(acc, a->scale);
}

// result is what one split gives for one row; mixed has the head's dimensions.
typedef struct result {
	float maximum, sum, *mixed;
} result;

static int begin_of(const tdm_attention *a, int position) { return position < a->window ? 0 : position + 1 - a->window; }

// attend computes the split at start for the query at `position`.
static void attend(const tdm_attention *a, const uint16_t *q, int kv_head, int position, int start, result *r) {
	float scores[TDM_SPLIT];
	uint16_t probabilities[TDM_SPLIT];
	const int begin = begin_of(a, position), from = begin > start ? begin - start : 0;
	int n = position + 1 - start;
	if (n > TDM_SPLIT)
		n = TDM_SPLIT;
	float m = -INFINITY, lanes[TDM_LANES] = {0};
	for (int t = from; t < n; t++) {
		scores[t] = score(a, q, kv_head, start + t);
		if (scores[t] > m)
			m = scores[t];
	}
	for (int t = from; t < n; t++) {
		float p = tdm_exp(tdm_add(scores[t], -m));
		if (a->kv == TDM_INT8) { // a probability takes its value's scale with it
			probabilities[t] = tdm_bf16(tdm_mul(p, scale_of(a, a->kv_heads + kv_head, start + t)));
		} else {
			probabilities[t] = tdm_bf16(p);
			p = tdm_widen(probabilities[t]);
		}
		lanes[t % TDM_LANES] = tdm_add(lanes[t % TDM_LANES], p);
	}
	r->maximum = m;
	r->sum = tdm_tree(lanes);
	for (int d = 0; d < a->head_size; d++) {
		float acc = 0;
		for (int t = from - from % 2; t < n; t += 2) {
			const int one = t >= from, two = t + 1 < n;
			uint32_t p = (one ? probabilities[t] : 0u) | (two ? (uint32_t)probabilities[t + 1] << 16 : 0u);
			acc = tdm_dot(acc, p, value_pair(a, kv_head, start + t, d, one, two));
		}
		r->mixed[d] = acc;
	}
}

// merge joins a split's result to that of those before it.
static void merge(result *all, const result *r, int size, int first) {
	if (first) {
		all->maximum = r->maximum;
		all->sum = r->sum;
		memcpy(all->mixed, r->mixed, (size_t)size * sizeof *r->mixed);
		return;
	}
	float both = r->maximum > all->maximum ? r->maximum : all->maximum;
	float keep = tdm_exp(tdm_add(all->maximum, -both)), take = tdm_exp(tdm_add(r->maximum, -both));
	all->sum = tdm_add(tdm_mul(all->sum, keep), tdm_mul(r->sum, take));
	all->maximum = both;
	for (int d = 0; d < size; d++)
		all->mixed[d] = tdm_add(tdm_mul(all->mixed[d], keep), tdm_mul(r->mixed[d], take));
}

// row_of is one row of an item: where its query and output are, what position it has,
// and where its first split begins.
typedef struct row_of {
	size_t at;
	int position, first;
} row_of;

static row_of find_row(const tdm_attention *a, int kv_head, int row0, int pos0, int row) {
	const int group = a->heads / a->kv_heads, position = pos0 + row / group;
	const size_t head = (size_t)(kv_head * group + row % group);
	return (row_of){(size_t)(row0 + row / group) * a->ldq + head * (size_t)a->head_size, position,
		begin_of(a, position) / TDM_SPLIT * TDM_SPLIT};
}

static void finish(const tdm_attention *a, size_t at, const result *r) {
	const float scale = 1.0f / r->sum;
	for (int d = 0; d < a->head_size; d++)
		a->out[at + d] = tdm_bf16(tdm_mul(r->mixed[d], scale));
}

static void attention(const tdm_attention *a, int kv_head, int row0, int pos0, int count, float *scratch) {
	result all = {.mixed = scratch}, one = {.mixed = scratch + a->head_size};
	for (int row = 0; row < count * (a->heads / a->kv_heads); row++) {
		const row_of r = find_row(a, kv_head, row0, pos0, row);
		for (int start = r.first; start <= r.position; start += TDM_SPLIT) {
			attend(a, a->q + r.at, kv_head, r.position, start, &one);
			merge(&all, &one, a->head_size, start == r.first);
		}
		finish(a, r.at, &all);
	}
}

// kept is where the results of the split at start are: what is mixed of all rows, the
// maxima, the sums.
static float *kept(const tdm_attention *a, int rows, int start, float *results) {
	return results + (size_t)(start / TDM_SPLIT) * tdm_attention_result(rows, a->head_size);
}

static void attention_part(const tdm_attention *a, int kv_head, int row0, int pos0, int count, int part, int parts, float *results, float *scratch) {
	(void)scratch;
	const int rows = count * (a->heads / a->kv_heads);
	for (int row = 0; row < rows; row++) {
		const row_of r = find_row(a, kv_head, row0, pos0, row);
		for (int start = r.first; start <= r.position; start += TDM_SPLIT) {
			if (start / TDM_SPLIT % parts != part)
				continue;
			float *to = kept(a, rows, start, results), *maxima = to + (size_t)rows * (size_t)a->head_size;
			result one = {.mixed = to + (size_t)row * (size_t)a->head_size};
			attend(a, a->q + r.at, kv_head, r.position, start, &one);
			maxima[row] = one.maximum;
			maxima[rows + row] = one.sum;
		}
	}
}

static void attention_join(const tdm_attention *a, int kv_head, int row0, int pos0, int count, float *results, float *scratch) {
	const int rows = count * (a->heads / a->kv_heads);
	result all = {.mixed = scratch};
	for (int row = 0; row < rows; row++) {
		const row_of r = find_row(a, kv_head, row0, pos0, row);
		for (int start = r.first; start <= r.position; start += TDM_SPLIT) {
			float *from = kept(a, rows, start, results), *maxima = from + (size_t)rows * (size_t)a->head_size;
			const result one = {maxima[row], maxima[rows + row], from + (size_t)row * (size_t)a->head_size};
			merge(&all, &one, a->head_size, start == r.first);
		}
		finish(a, r.at, &all);
	}
}

static void exps(float *out, const float *x, int n) {
	for (int i = 0; i < n; i++)
		out[i] = tdm_exp(x[i]);
}

const tdm_kernels tdm_portable = {
	.name = "portable", .flushes = 0,
	.product = product, .product_int8 = product_int8, .product_int4 = product_int4, .quantize = quantize,
	.norm = norm, .adjust = adjust, .rotate = rotate,
	.attention = attention, .attention_part = attention_part, .attention_join = attention_join, .exps = exps,
};
