// Single kernels with flat arguments, in the mode they need. For tests.
#ifndef TDM_PROBE_H
#define TDM_PROBE_H

#include "tdm_kernels.h"

void tdm_probe_product(const tdm_kernels *k, const uint32_t *a, size_t lda, const uint32_t *w, size_t pairs,
	int rows, int panels, int n, int mode, void *out, size_t ldo);
void tdm_probe_product_quantized(const tdm_kernels *k, int packed, int in_turn, int8_t *values, float *scales, const uint8_t *w, size_t groups,
	int rows, int panels, int n, int mode, void *out, size_t ldo);
void tdm_probe_quantize(const tdm_kernels *k, int8_t *values, float *scales, const uint16_t *x, int n);
void tdm_probe_norm(const tdm_kernels *k, uint16_t *out, const float *x, const float *weight, int n, float eps);
void tdm_probe_exps(const tdm_kernels *k, float *out, const float *x, int n);
void tdm_probe_adjust(const tdm_kernels *k, float *qkv, const float *bias, const float *q_norm, const float *k_norm, float eps,
	int heads, int kv_heads, int head_size);
void tdm_probe_rotate(const tdm_kernels *k, float *qkv, const float *cos, const float *sin, uint16_t *q,
	int heads, int kv_heads, int head_size, int block_tokens, int kv, uint8_t *slice, uint8_t *mirror, int token);
// In `parts`, or if that is 0 undivided.
void tdm_probe_attention(const tdm_kernels *k, const uint16_t *q, uint16_t *out, const uint8_t *slices, size_t page_bytes,
	const int32_t *blocks, int heads, int kv_heads, int head_size, int block_tokens, int kv, float scale,
	int window, int kv_head, int pos0, int count, int parts, float *results, float *scratch);

#endif
