// Single kernels with flat arguments, for tests: a struct that holds pointers to
// Go memory must not cross into C.

#include "tdm_probe.h"

void tdm_probe_product(const tdm_kernels *k, const uint32_t *a, size_t lda, const uint32_t *w, size_t pairs,
	int rows, int panels, int n, int mode, void *out, size_t ldo) {
	const tdm_product p = {.a = a, .lda = lda, .w = w, .pairs = pairs, .rows = rows, .panels = panels, .n = n, .mode = mode, .out = out, .ldo = ldo};
	unsigned saved = tdm_flush_enter(k);
	for (int unit = 0; unit * TDM_UNIT_PANELS < panels; unit++)
		k->product(&p, unit, 0, rows);
	tdm_flush_leave(saved);
}

void tdm_probe_product_quantized(const tdm_kernels *k, int packed, int in_turn, int8_t *values, float *scales, const uint8_t *w, size_t groups,
	int rows, int panels, int n, int mode, void *out, size_t ldo) {
	const tdm_product p = {.q = {values, scales}, .w = w, .packed = packed, .in_turn = in_turn, .groups = groups, .rows = rows, .panels = panels, .n = n, .mode = mode, .out = out, .ldo = ldo};
	unsigned saved = tdm_flush_enter(k);
	for (int unit = 0; unit * TDM_UNIT_PANELS < panels; unit++)
		(packed == TDM_INT4 ? k->product_int4 : k->product_int8)(&p, unit, 0, rows);
	tdm_flush_leave(saved);
}

void tdm_probe_quantize(const tdm_kernels *k, int8_t *values, float *scales, const uint16_t *x, int n) {
	unsigned saved = tdm_flush_enter(k);
	k->quantize(values, scales, x, n);
	tdm_flush_leave(saved);
}

void tdm_probe_norm(const tdm_kernels *k, uint16_t *out, const float *x, const float *weight, int n, float eps) {
	unsigned saved = tdm_flush_enter(k);
	k->norm(out, x, weight, n, 1.0f / (float)n, eps);
	tdm_flush_leave(saved);
}

void tdm_probe_exps(const tdm_kernels *k, float *out, const float *x, int n) {
	unsigned saved = tdm_flush_enter(k);
	k->exps(out, x, n);
	tdm_flush_leave(saved);
}

void tdm_probe_adjust(const tdm_kernels *k, float *qkv, const float *bias, const float *q_norm, const float *k_norm, float eps,
	int heads, int kv_heads, int head_size) {
	const tdm_rows rows = {.qkv = qkv, .bias = bias, .q_norm = q_norm, .k_norm = k_norm, .norm_eps = eps,
		.heads = heads, .kv_heads = kv_heads, .head_size = head_size};
	unsigned saved = tdm_flush_enter(k);
	k->adjust(&rows, 0);
	tdm_flush_leave(saved);
}

void tdm_probe_rotate(const tdm_kernels *k, float *qkv, const float *cos, const float *sin, uint16_t *q,
	int heads, int kv_heads, int head_size, int block_tokens, int kv, uint8_t *slice, uint8_t *mirror, int token) {
	const tdm_rows rows = {.qkv = qkv, .cos = cos, .sin = sin, .q = q,
		.heads = heads, .kv_heads = kv_heads, .head_size = head_size, .block_tokens = block_tokens, .kv = kv};
	unsigned saved = tdm_flush_enter(k);
	k->rotate(&rows, 0, slice, mirror, token);
	tdm_flush_leave(saved);
}

void tdm_probe_attention(const tdm_kernels *k, const uint16_t *q, uint16_t *out, const uint8_t *slices, size_t page_bytes,
	const int32_t *blocks, int heads, int kv_heads, int head_size, int block_tokens, int kv, float scale,
	int window, int kv_head, int pos0, int count, int parts, float *results, float *scratch) {
	const tdm_attention a = {q, (size_t)heads * (size_t)head_size, out, slices, page_bytes, blocks,
		heads, kv_heads, head_size, block_tokens, scale, window, kv};
	unsigned saved = tdm_flush_enter(k);
	if (parts == 0)
		k->attention(&a, kv_head, 0, pos0, count, scratch);
	for (int part = parts; part-- > 0;)
		k->attention_part(&a, kv_head, 0, pos0, count, part, parts, results, scratch);
	if (parts > 0)
		k->attention_join(&a, kv_head, 0, pos0, count, results, scratch);
	tdm_flush_leave(saved);
}
