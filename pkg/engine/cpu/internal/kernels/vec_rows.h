// Kernels of one row, over 16-lane vectors. Included once by each instruction
// set's file, after its vector operations. Runs with FTZ and DAZ set.

// v_exp is tdm_exp in every lane.
VEC vec v_exp(vec x) {
	const vec limit = v_set1(TDM_EXP_LIMIT);
	vec y = v_if_less(limit, x, limit, x);
	vec t = v_fma(y, v_set1(TDM_EXP_LOG2E), v_set1(TDM_EXP_SHIFT));
	vec n = v_sub(t, v_set1(TDM_EXP_SHIFT));
	vec r = v_fma(n, v_set1(TDM_EXP_LN2_HIGH), y);
	r = v_fma(n, v_set1(TDM_EXP_LN2_LOW), r);
	vec p = v_set1(TDM_EXP_C0);
	p = v_fma(p, r, v_set1(TDM_EXP_C1));
	p = v_fma(p, r, v_set1(TDM_EXP_C2));
	p = v_fma(p, r, v_set1(TDM_EXP_C3));
	p = v_fma(p, r, v_set1(TDM_EXP_C4));
	p = v_fma(p, r, v_set1(TDM_EXP_C5));
	p = v_fma(p, v_mul(r, r), r);
	p = v_mul(v_add(p, v_set1(1.0f)), v_power(t));
	return v_if_less(x, v_set1(-TDM_EXP_LIMIT), v_zero(), p);
}

VEC vec v_silu(vec x) {
	const vec one = v_set1(1.0f);
	vec e = v_add(one, v_exp(v_mul(x, v_set1(-1.0f))));
	return v_mul(x, v_div(one, e));
}

// v_load_first loads n < 16 floats, zeros after them.
VEC vec v_load_first(const float *p, int n) {
	float lanes[TDM_LANES] = {0};
	memcpy(lanes, p, (size_t)n * sizeof *p);
	return v_load(lanes);
}

// v_store_bf16 stores the first n lanes, rounded.
VEC void v_store_bf16(uint16_t *p, vec x, int n) {
	if (n >= TDM_LANES) {
		v_store_high(p, v_round(x));
		return;
	}
	uint16_t lanes[TDM_LANES];
	v_store_high(lanes, v_round(x));
	memcpy(p, lanes, (size_t)n * sizeof *p);
}

// v_store_first stores the first n lanes.
VEC void v_store_first(float *p, vec x, int n) {
	if (n >= TDM_LANES) {
		v_store(p, x);
		return;
	}
	float lanes[TDM_LANES];
	v_store(lanes, x);
	memcpy(p, lanes, (size_t)n * sizeof *p);
}

VEC float v_sum(vec x) {
	float lanes[TDM_LANES];
	v_store(lanes, x);
	return tdm_tree(lanes);
}

// rms_scale is what RMSNorm multiplies n elements with.
VEC vec rms_scale(const float *x, int n, float inv_n, float eps) {
	vec squares = v_zero();
	int i = 0;
	for (; i + TDM_LANES <= n; i += TDM_LANES) {
		vec v = v_load(x + i);
		squares = v_fma(v, v, squares);
	}
	if (i < n) {
		vec v = v_load_first(x + i, n - i);
		squares = v_fma(v, v, squares);
	}
	float mean = v_sum(squares) * inv_n;
	return v_set1(1.0f / sqrtf(tdm_add(mean, eps)));
}

static void norm(uint16_t *out, const float *x, const float *weight, int n, float inv_n, float eps) {
	vec scale = rms_scale(x, n, inv_n, eps);
	int i = 0;
	for (; i + TDM_LANES <= n; i += TDM_LANES)
		v_store_bf16(out + i, v_mul(v_mul(v_load(x + i), scale), v_load(weight + i)), TDM_LANES);
	if (i < n)
		v_store_bf16(out + i, v_mul(v_mul(v_load_first(x + i, n - i), scale), v_load_first(weight + i, n - i)), n - i);
}

static void adjust(const tdm_rows *r, int row) {
	const int size = r->head_size, all = (r->heads + 2 * r->kv_heads) * size;
	float *x = r->qkv + (size_t)row * r->ld_qkv;
	if (r->bias) {
		int i = 0;
		for (; i + TDM_LANES <= all; i += TDM_LANES)
			v_store(x + i, v_add(v_load(x + i), v_load(r->bias + i)));
		if (i < all)
			v_store_first(x + i, v_add(v_load_first(x + i, all - i), v_load_first(r->bias + i, all - i)), all - i);
	}
	if (!r->q_norm)
		return;
	for (int h = 0; h < r->heads + r->kv_heads; h++, x += size) {
		const float *weight = h < r->heads ? r->q_norm : r->k_norm;
		const vec scale = rms_scale(x, size, 1.0f / (float)size, r->norm_eps);
		int i = 0;
		for (; i + TDM_LANES <= size; i += TDM_LANES)
			v_store(x + i, v_mul(v_mul(v_load(x + i), scale), v_load(weight + i)));
		if (i < size)
			v_store_first(x + i, v_mul(v_mul(v_load_first(x + i, size - i), scale), v_load_first(weight + i, size - i)), size - i);
	}
}

// rotate_vectors rotates lanes i to i+n of a head, at most 16, into their low and high
// halves.
VEC void rotate_vectors(const float *x, const float *cos, const float *sin, int half, int n, vec *low, vec *high) {
	vec x0, x1, c, s;
	if (n >= TDM_LANES) {
		x0 = v_load(x), x1 = v_load(x + half), c = v_load(cos), s = v_load(sin);
	} else {
		x0 = v_load_first(x, n), x1 = v_load_first(x + half, n);
		c = v_load_first(cos, n), s = v_load_first(sin, n);
	}
	*low = v_sub(v_mul(x0, c), v_mul(x1, s));
	*high = v_add(v_mul(x1, c), v_mul(x0, s));
}

// rotate_16 does so into bf16.
VEC void rotate_16(const float *x, const float *cos, const float *sin, int half, int n, uint16_t *low, uint16_t *high) {
	vec l, h;
	rotate_vectors(x, cos, sin, half, n, &l, &h);
	v_store_bf16(low, l, n);
	v_store_bf16(high, h, n);
}

static void exps(float *out, const float *x, int n) {
	for (int i = 0; i < n; i += TDM_LANES) {
		int m = n - i < TDM_LANES ? n - i : TDM_LANES;
		float lanes[TDM_LANES];
		v_store(lanes, v_exp(v_load_first(x + i, m)));
		memcpy(out + i, lanes, (size_t)m * sizeof *out);
	}
}
