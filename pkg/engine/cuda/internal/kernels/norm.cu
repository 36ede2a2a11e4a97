// tdm_norm: RMSNorm of rows, to bf16. A thread adds the squares of four neighbours, then
// of those 1024 further on; lanes and then warps are added in a fixed order, so that the
// sum depends on the row and its width only.
#include "deferred.h"

TDM_KERNEL(TDM_ROW_THREADS, 1) tdm_norm(const tdm_norm_args a) {
  tdm_begin();
  const int row = tdm_block_x();
  if (row >= *a.count)
    return;
  const int thread = tdm_thread();
  float *sums = (float *)tdm_shared(); // one a warp
  const float *x = a.x + (a.index ? (int64_t)a.index[row] : (int64_t)row) * a.ldx;
  uint16_t *out = a.out + (int64_t)row * a.ldo;

  float sum = 0;
  for (int i = 4 * thread; i < a.width; i += 4 * TDM_ROW_THREADS) {
    const tdm_floats four = *(const tdm_floats *)(x + i); // zeros past the width
    for (int j = 0; j < 4; j++)
      sum = tdm_fma(four[j], four[j], sum);
  }
  sum = tdm_warp_sum(sum);
  if (thread % 32 == 0)
    sums[thread / 32] = sum;
  tdm_barrier();
  sum = sums[0];
  for (int w = 1; w < 8; w++)
    sum = sum + sums[w];
  const float r = 1.0f / tdm_root(sum * (1.0f / (float)a.width) + a.eps);

  for (int i = 4 * thread; i < a.width; i += 4 * TDM_ROW_THREADS) {
    const tdm_floats four = *(const tdm_floats *)(x + i);
    for (int j = 0; j < 4; j++) {
      if (i + j < a.width)
        out[i + j] = tdm_bf16((four[j] * r) * a.weight[i + j]);
    }
  }
}

// tdm_roots: the roots of rows, a warp a row.
TDM_KERNEL(TDM_ROW_THREADS, 1) tdm_roots(const tdm_roots_args a) {
  tdm_begin();
  const int row = tdm_block_x() * TDM_ROOTS_ROWS + tdm_thread() / 32, count = *a.count;
  if (row >= count)
    return;
  float root[1];
  tdm_roots_of(a.norm, row, count, root);
  if (tdm_thread() % 32 == 0)
    a.norm.roots[row] = root[0];
}
