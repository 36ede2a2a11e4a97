// What the products share: slices of K, and what becomes of a finished sum.
#ifndef TDM_PRODUCT_H
#define TDM_PRODUCT_H

#include "device.h"

enum tdm_then { TDM_STORE, TDM_ADD, TDM_SWIGLU };

// tdm_slice_blocks is how many blocks of TDM_K a slice has; the last ones may have fewer
// or none.
TDM_INLINE int tdm_slice_blocks(int k) { return (k / TDM_K + TDM_SLICES - 1) / TDM_SLICES; }

// tdm_weight_row is the row of `line` of a tile of 16 outputs, which begin at `output`.
// Of SwiGLU, whose outputs come in eights, lines 0 to 7 are of w and 8 to 15 of up.
template <int then> TDM_INLINE const uint16_t *tdm_weight_row(const tdm_product_args &a, int output, int line) {
  if (then != TDM_SWIGLU)
    return a.w + (int64_t)(output + line) * a.ldw;
  return (line < 8 ? a.w : a.up) + (int64_t)(output + line % 8) * a.ldw;
}

// tdm_finish writes a finished sum: to float32, or for SwiGLU, where `up` is the other
// sum, to bf16.
template <int then> TDM_INLINE void tdm_finish(const tdm_product_args &a, int row, int output, float sum, float up) {
  if (output >= a.outputs)
    return;
  const int64_t at = (int64_t)row * a.ldo + output;
  if (then == TDM_STORE)
    ((float *)a.out)[at] = sum;
  else if (then == TDM_ADD)
    ((float *)a.out)[at] = ((float *)a.out)[at] + sum;
  else
    ((uint16_t *)a.out)[at] = tdm_bf16(tdm_silu(sum) * up);
}

#endif
