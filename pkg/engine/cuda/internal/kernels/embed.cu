// tdm_embed: rows of the embedding table as float32, and what the first norm wants of them.
// Two neighbouring threads have sixteen elements, eight each.
#include "deferred.h"

TDM_KERNEL(TDM_ROW_THREADS, 1) tdm_embed(const tdm_embed_args a) {
  tdm_begin();
  const int row = tdm_block_x();
  if (row >= a.counts->rows)
    return;
  const uint16_t *from = a.table + (int64_t)a.tokens[row] * a.ldt;
  float *to = a.x + (int64_t)row * a.ldx;
  for (int i0 = 0; i0 < a.width; i0 += 8 * TDM_ROW_THREADS) { // all threads, since they exchange squares
    const int i = i0 + 8 * tdm_thread();
    const tdm_quad eight = i < a.width ? tdm_load16(from + i) : tdm_quad{};
    float squares[8];
    TDM_UNROLL
    for (int j = 0; j < 8; j++) {
      const float x = tdm_wide((uint16_t)(eight[j / 2] >> 16 * (j % 2)));
      squares[j] = 0;
      if (i + j >= a.width)
        continue;
      squares[j] = x * x;
      to[i + j] = x;
      tdm_scale(a.norm, row, i + j, x, a.norm.weight[i + j]);
    }
    TDM_UNROLL
    for (int j = 0; j < 8; j++)
      squares[j] = squares[j] + tdm_shuffle(squares[j], 1);
    TDM_UNROLL
    for (int apart = 4; apart > 0; apart /= 2) {
      TDM_UNROLL
      for (int j = 0; j < apart; j++)
        squares[j] = squares[j] + squares[j + apart];
    }
    if (i < a.width && tdm_thread() % 2 == 0)
      tdm_leave(a.norm, row, i, squares[0]);
  }
}
