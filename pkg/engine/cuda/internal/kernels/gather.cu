// tdm_gather: rows that an index names, side by side.
#include "device.h"

TDM_KERNEL(TDM_ROW_THREADS, 1) tdm_gather(const tdm_gather_args a) {
  tdm_begin();
  const int row = tdm_block_x();
  if (row >= *a.count)
    return;
  const uint8_t *from = a.from + (int64_t)a.index[row] * a.row_bytes;
  uint8_t *to = a.to + (int64_t)row * a.row_bytes;
  for (int64_t i = 16 * tdm_thread(); i < a.row_bytes; i += 16 * TDM_ROW_THREADS)
    *(tdm_quad *)(to + i) = tdm_load16(from + i);
}
