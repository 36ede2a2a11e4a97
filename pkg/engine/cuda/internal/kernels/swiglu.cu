// tdm_swiglu: SwiGLU of products that are computed already, eight elements a thread.
#include "device.h"

// tdm_gated is a pair of results, of a pair of gates and of what they let through.
TDM_INLINE uint32_t tdm_gated(uint32_t gate, uint32_t up) {
  const float low = tdm_silu(tdm_wide((uint16_t)gate)) * tdm_wide((uint16_t)up);
  const float high = tdm_silu(tdm_wide((uint16_t)(gate >> 16))) * tdm_wide((uint16_t)(up >> 16));
  return tdm_pair(low, high);
}

TDM_KERNEL(TDM_ROW_THREADS, 1) tdm_swiglu(const tdm_swiglu_args a) {
  tdm_begin();
  const int row = tdm_block_x();
  if (row >= *a.count)
    return;
  const uint16_t *gate = a.both + (int64_t)row * a.ld, *up = gate + a.up;
  uint16_t *out = a.out + (int64_t)row * a.ldo;
  for (int i = 8 * tdm_thread(); i < a.width; i += 8 * TDM_ROW_THREADS) {
    const tdm_quad g = tdm_load16(gate + i), u = tdm_load16(up + i);
    tdm_quad result;
    for (int j = 0; j < 4; j++)
      result[j] = tdm_gated(g[j], u[j]);
    if (i + 8 <= a.width) {
      *(tdm_quad *)(out + i) = result;
      continue;
    }
    for (int j = 0; i + j < a.width; j++) // what pads a row stays zero
      out[i + j] = (uint16_t)(result[j / 2] >> 16 * (j % 2));
  }
}
