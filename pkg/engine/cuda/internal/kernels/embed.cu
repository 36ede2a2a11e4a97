// tdm_embed: rows of the embedding table as float32.
#include "device.h"

TDM_KERNEL(TDM_ROW_THREADS, 1) tdm_embed(const tdm_embed_args a) {
  const int row = tdm_block_x();
  if (row >= a.counts->rows)
    return;
  const uint16_t *from = a.table + (int64_t)a.tokens[row] * a.ldt;
  float *to = a.x + (int64_t)row * a.ldx;
  for (int i = 8 * tdm_thread(); i < a.width; i += 8 * TDM_ROW_THREADS) {
    const tdm_quad eight = tdm_load16(from + i);
    for (int j = 0; j < 4; j++) {
      if (i + 2 * j < a.width)
        to[i + 2 * j] = tdm_float(eight[j] << 16);
      if (i + 2 * j + 1 < a.width)
        to[i + 2 * j + 1] = tdm_float(eight[j] & 0xffff0000u);
    }
  }
}
