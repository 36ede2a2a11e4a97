// tdm_heads: what stands between the products of queries, keys and values and attention.
// A warp takes a head, a block eight: bias, norm, rotary embedding, then queries to q, and keys and
// values into their pages.
#include "fp8.h"
#include "heads.h"

// The two halves of a head that lane l holds: dimensions l, l+32, ... of each.
constexpr int tdm_pairs = TDM_MOST_HEAD / 2 / 32;

TDM_KERNEL(TDM_ROW_THREADS, 1) tdm_heads(const tdm_heads_args a) {
  tdm_begin();
  const int row = tdm_block_x();
  if (row >= a.counts->rows)
    return;
  const int h = tdm_block_y() * TDM_HEADS_BLOCK + tdm_thread() / 32, lane = tdm_thread() % 32;
  if (h >= a.heads + 2 * a.kv_heads)
    return;
  const int half = a.size / 2, position = a.positions[row], slot = a.slots[row];

  const bool query = h < a.heads, value = h >= a.heads + a.kv_heads;
  const float *from = a.qkv + (int64_t)row * a.ld + h * a.size;
  float low[tdm_pairs] = {}, high[tdm_pairs] = {}, sum = 0;
  TDM_UNROLL
  for (int j = 0; j < tdm_pairs; j++) {
    const int i = lane + 32 * j;
    if (i >= half)
      continue;
    low[j] = from[i];
    high[j] = from[half + i];
    if (a.bias) {
      low[j] = low[j] + a.bias[h * a.size + i];
      high[j] = high[j] + a.bias[h * a.size + half + i];
    }
    sum = tdm_fma(low[j], low[j], sum);
    sum = tdm_fma(high[j], high[j], sum);
  }
  const float *norm = query ? a.q_norm : value ? nullptr : a.k_norm;
  if (norm) {
    sum = tdm_warp_sum(sum);
    const float r = 1.0f / tdm_root(sum * (1.0f / (float)a.size) + a.eps);
    TDM_UNROLL
    for (int j = 0; j < tdm_pairs; j++) {
      const int i = lane + 32 * j;
      if (i >= half)
        continue;
      low[j] = (low[j] * r) * norm[i];
      high[j] = (high[j] * r) * norm[half + i];
    }
  }
  if (!value) {
    TDM_UNROLL
    for (int j = 0; j < tdm_pairs; j++) {
      const int i = lane + 32 * j;
      if (i < half)
        tdm_rotate(tdm_turn_of(a, position, i), low[j], high[j]);
    }
  }
  if (!query && a.fp8) {
    tdm_write_fp8(a, slot, h - a.heads, low, high);
    return;
  }
  uint16_t *to = tdm_head_place(a, row, slot, h);
  TDM_UNROLL
  for (int j = 0; j < tdm_pairs; j++) {
    const int i = lane + 32 * j;
    if (i >= half)
      continue;
    to[i] = tdm_bf16(low[j]);
    to[half + i] = tdm_bf16(high[j]);
  }
  for (int i = a.size + lane; i < a.stride; i += 32)
    to[i] = 0;
}
