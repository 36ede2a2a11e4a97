// tdm_join: joins the results of splits that different blocks computed. What does not
// depend on the sums before, reading and the exponentials, is done for several splits at a
// time.
#include "join.h"

TDM_KERNEL(TDM_ATTENTION_THREADS, 4) tdm_join(const tdm_join_args a) {
  constexpr int at_once = 8;
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
      float m = 0, l = 0;
      bool seen = false;
      tdm_floats o = {};
      for (int first = 0; first < item.splits; first += at_once) {
        tdm_total splits[at_once];
        tdm_floats parts[at_once];
        TDM_UNROLL
        for (int s = 0; s < at_once; s++) {
          const int at = tdm_least(first + s, item.splits - 1);
          splits[s] = {sums[at * stride * 2], sums[at * stride * 2 + 1]};
          parts[s] = *(const tdm_floats *)(results + at * stride * a.size);
        }
        tdm_factors factors[at_once];
        bool counts[at_once];
        TDM_UNROLL
        for (int s = 0; s < at_once; s++) {
          counts[s] = first + s < item.splits && splits[s].l != 0.0f; // l is 0: it saw nothing of this split
          if (!counts[s])
            continue;
          factors[s] = tdm_join_largest(m, seen, splits[s].m);
          seen = true;
        }
        TDM_UNROLL
        for (int s = 0; s < at_once; s++) {
          if (!counts[s])
            continue;
          l = tdm_join_result(l, splits[s].l, factors[s]);
          for (int j = 0; j < 4; j++)
            o[j] = tdm_join_result(o[j], parts[s][j], factors[s]);
        }
      }
      const float inverse = 1.0f / l;
      uint16_t *out = a.out + (int64_t)(item.row0 + row / group) * a.ldq + (kv * group + row % group) * a.size + dimension;
      ((uint32_t *)out)[0] = tdm_pair(o[0] * inverse, o[1] * inverse);
      ((uint32_t *)out)[1] = tdm_pair(o[2] * inverse, o[3] * inverse);
    }
  }
}
