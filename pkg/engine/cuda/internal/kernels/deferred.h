// RMSNorm in two parts: who finishes a row of x leaves bf16(x*weight) and the sums of the
// squares of each TDM_SQUARES elements, and the product behind it multiplies its sums by the
// row's root. Neither takes a kernel of its own where rows are few.
//
// Of sixteen elements those 8 apart are added first, then 4, 2, 1: whichever of the lanes of
// a kernel have them, it is the same sum. Elements past the width are zeros.
#ifndef TDM_DEFERRED_H
#define TDM_DEFERRED_H

#include "device.h"

// tdm_scale leaves bf16(x*weight) of element i.
TDM_INLINE void tdm_scale(const tdm_deferred &n, int row, int i, float x, float weight) {
  n.scaled[(int64_t)row * n.ld + i] = tdm_bf16(x * weight);
}

// tdm_leave leaves the sum of the squares of the TDM_SQUARES elements from i on.
TDM_INLINE void tdm_leave(const tdm_deferred &n, int row, int i, float sum) {
  n.squares[(int64_t)row * n.lds + i / TDM_SQUARES] = sum;
}

// tdm_roots_of are the roots of rows row0, row0 + 8, ..., for a whole warp: 1/sqrt(mean of
// squares + eps), or 1 where there is no norm. Rows from count on have what the last one
// has. A lane adds four sums after the other, then those 128 further on.
template <int rows> TDM_INLINE void tdm_roots_of(const tdm_deferred &n, int row0, int count, float (&root)[rows]) {
  TDM_UNROLL
  for (int j = 0; j < rows; j++)
    root[j] = 1;
  if (!n.squares)
    return;
  const int sums = (n.width + TDM_SQUARES - 1) / TDM_SQUARES;
  float sum[rows] = {};
  for (int i = 4 * (tdm_thread() % 32); i < sums; i += 128) { // what pads a row is zero
    TDM_UNROLL
    for (int j = 0; j < rows; j++) {
      const tdm_floats four = *(const tdm_floats *)(n.squares + tdm_least(row0 + 8 * j, count - 1) * n.lds + i);
      for (int c = 0; c < 4; c++)
        sum[j] = sum[j] + four[c];
    }
  }
  TDM_UNROLL
  for (int j = 0; j < rows; j++)
    root[j] = 1.0f / tdm_root(tdm_warp_sum(sum[j]) * (1.0f / (float)n.width) + n.eps);
}

#endif
