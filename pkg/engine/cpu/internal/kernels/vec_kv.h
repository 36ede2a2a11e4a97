// How keys and values get into pages. Included once after vec_rows.h.

// rotate_pairs writes one token's key and value as bf16.
static void rotate_pairs(const tdm_rows *r, const float *x, const float *cos, const float *sin, uint8_t *slice, int token) {
	const int size = r->head_size, half = size / 2, tokens = r->block_tokens;
	uint16_t *keys = (uint16_t *)slice;
	uint16_t *values = keys + (size_t)r->kv_heads * tokens * size;
	uint16_t low[TDM_LANES], high[TDM_LANES];
	for (int h = 0; h < r->kv_heads; h++, x += size, keys += (size_t)tokens * size)
		for (int i = 0; i < half; i += TDM_LANES) {
			int n = half - i < TDM_LANES ? half - i : TDM_LANES;
			rotate_16(x + i, cos + i, sin + i, half, half - i, low, high);
			for (int l = 0; l < n; l++) {
				int a = i + l, b = a + half;
				keys[((size_t)(a / 2) * tokens + token) * 2 + a % 2] = low[l];
				keys[((size_t)(b / 2) * tokens + token) * 2 + b % 2] = high[l];
			}
		}
	for (int h = 0; h < r->kv_heads; h++, x += size, values += (size_t)tokens * size)
		for (int i = 0; i < size; i++)
			values[((size_t)(token / 2) * size + i) * 2 + token % 2] = tdm_bf16(x[i]);
}

// rotate_in_place rotates a head.
VEC void rotate_in_place(float *x, const float *cos, const float *sin, int half) {
	for (int i = 0; i < half; i += TDM_LANES) {
		const int n = half - i;
		vec low, high;
		rotate_vectors(x + i, cos + i, sin + i, half, n, &low, &high);
		v_store_first(x + i, low, n);
		v_store_first(x + i + half, high, n);
	}
}

// quantize_head writes the codes of a head, `stride` bytes apart, and returns its scale.
static uint16_t quantize_head(const float *x, int size, int8_t *codes, size_t stride) {
	vec largest = v_zero(), wrong = v_zero();
	for (int i = 0; i < size; i += TDM_LANES) {
		const vec v = size - i < TDM_LANES ? v_load_first(x + i, size - i) : v_load(x + i);
		largest = v_max(largest, v_max(v, v_sub(v_zero(), v)));
		wrong = v_fma(v, v_zero(), wrong); // infinity and NaN times zero are NaN
	}
	float lanes[TDM_LANES], most = 0, reciprocal;
	v_store(lanes, largest);
	for (int l = 0; l < TDM_LANES; l++)
		most = lanes[l] > most ? lanes[l] : most;
	const uint16_t scale = tdm_kv_scale(most, v_sum(wrong) == 0, &reciprocal);
	const vec by = v_set1(reciprocal), shift = v_set1(TDM_EXP_SHIFT);
	for (int i = 0; i < size; i += TDM_LANES) {
		const int n = size - i < TDM_LANES ? size - i : TDM_LANES;
		if (reciprocal != 0)
			v_store(lanes, v_add(v_mul(n < TDM_LANES ? v_load_first(x + i, n) : v_load(x + i), by), shift));
		else
			v_store(lanes, v_zero());
		for (int l = 0; l < n; l++)
			codes[(size_t)(i + l) * stride] = (int8_t)(uint8_t)tdm_bits(lanes[l]);
	}
	return scale;
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

static void rotate(const tdm_rows *r, int row, uint8_t *slice, uint8_t *mirror, int token) {
	const int size = r->head_size, half = size / 2;
	float *x = r->qkv + (size_t)row * r->ld_qkv;
	const float *cos = r->cos + (size_t)row * half, *sin = r->sin + (size_t)row * half;
	uint16_t *q = r->q + (size_t)row * r->ldq;
	for (int h = 0; h < r->heads; h++, x += size, q += size)
		for (int i = 0; i < half; i += TDM_LANES)
			rotate_16(x + i, cos + i, sin + i, half, half - i, q + i, q + i + half);
	if (r->kv == TDM_INT8)
		for (int h = 0; h < r->kv_heads; h++)
			rotate_in_place(x + h * size, cos, sin, half);
	for (; slice; slice = mirror, mirror = NULL)
		if (r->kv == TDM_INT8)
			write_codes(r, x, slice, token);
		else
			rotate_pairs(r, x, cos, sin, slice, token);
}
