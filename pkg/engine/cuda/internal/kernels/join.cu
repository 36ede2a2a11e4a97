// tdm_join: joins the results of splits that different blocks computed.
#include "join.h"

TDM_KERNEL(TDM_ATTENTION_THREADS, 4) tdm_join(const tdm_join_args a) {
  const int count = *a.count, kv = tdm_block_y(), group = a.heads / a.kv_heads;
  for (int n = tdm_block_x(); n < count; n += tdm_grid_x()) {
    const tdm_joint item = a.joins[n];
    const int rows = item.tokens * group, quads = a.size / 4;
    for (int i = tdm_thread(); i < rows * quads; i += TDM_ATTENTION_THREADS) {
      const int row = i / quads, dimension = 4 * (i % quads);
      const int64_t slot = item.slot + row / TDM_THIN_ROWS;
      const int64_t line = (slot * a.kv_heads + kv) * TDM_THIN_ROWS + row % TDM_THIN_ROWS;
      const int64_t stride = (int64_t)item.stride * a.kv_heads * TDM_THIN_ROWS;
      const float *sums = a.sums + line * 2, *results = a.results + line * a.size + dimension;
      tdm_total total = {0, 0};
      tdm_floats o = {};
      TDM_UNROLL_BY(8)
      for (int s = 0; s < item.splits; s++) {
        const tdm_total split = {sums[s * stride * 2], sums[s * stride * 2 + 1]};
        const tdm_floats result = *(const tdm_floats *)(results + s * stride * a.size);
        if (split.l == 0.0f) // it saw nothing of this split
          continue;
        const tdm_factors f = tdm_join_sums(total, split);
        for (int j = 0; j < 4; j++)
          o[j] = tdm_join_result(o[j], result[j], f);
      }
      const float inverse = 1.0f / total.l;
      uint16_t *out = a.out + (int64_t)(item.row0 + row / group) * a.ldq + (kv * group + row % group) * a.size + dimension;
      ((uint32_t *)out)[0] = tdm_pair(o[0] * inverse, o[1] * inverse);
      ((uint32_t *)out)[1] = tdm_pair(o[2] * inverse, o[3] * inverse);
    }
  }
}
