// What the products share: slices of K, and what becomes of a finished sum.
#ifndef TDM_PRODUCT_H
#define TDM_PRODUCT_H

#include "deferred.h"
#include "heads.h"
#include "weights.h"

enum tdm_then { TDM_STORE, TDM_ADD, TDM_SWIGLU, TDM_HEADS };

// tdm_paired is whether an output is of two sums.
constexpr bool tdm_paired(int then) { return then == TDM_SWIGLU || then == TDM_HEADS; }

// tdm_slice_blocks is how many blocks of TDM_K a slice has; the last ones may have fewer
// or none.
TDM_INLINE int tdm_slice_blocks(int k) { return (k / TDM_K + TDM_SLICES - 1) / TDM_SLICES; }

// tdm_weight_row is the row of `line` of a tile of 16 sums, whose outputs begin at `output`.
// Where outputs are of two sums and come in eights, lines 0 to 7 are the first of them and
// 8 to 15 the second: of SwiGLU rows of w and of up, of heads rows of w that are half a head
// apart.
template <int then, class format>
TDM_INLINE const uint8_t *tdm_weight_row(const tdm_product_args &a, const tdm_heads_args *heads, int output, int line) {
  const int64_t row_bytes = a.ldw * format::bytes;
  if (then == TDM_SWIGLU)
    return (const uint8_t *)(line < 8 ? a.w : a.up) + (output + line % 8) * row_bytes;
  if (then == TDM_HEADS) {
    // A block's last tile may be past all heads: it reads what the last one does.
    const int half = heads->size / 2, first = tdm_least(output, a.outputs - 8);
    return (const uint8_t *)a.w + (first + first / half * half + line % 8 + line / 8 * half) * row_bytes;
  }
  return (const uint8_t *)a.w + (output + line) * row_bytes;
}

// tdm_extra is what finishing an output takes beside its sums. It can be asked for before
// they are there, so that nothing waits for memory when they are.
struct tdm_extra {
  float scale, other_scale; // of the weights: of the sum, and of the other one of two
  float x, weight;          // of add: what stands there, and the next norm's
  float bias, other_bias;   // of heads: of both dimensions
  tdm_turn turn;
  int slot;
};

// tdm_scale_of is what a sum of an output is multiplied by for its weights.
TDM_INLINE float tdm_scale_of(const float *scales, int output) { return scales ? scales[output] : 1; }

// tdm_ask is the extra of an output of a row. Past the outputs it reads nothing.
template <int then> TDM_INLINE tdm_extra tdm_ask(const tdm_product_args &a, const tdm_heads_args *heads, int row, int output) {
  tdm_extra e = {};
  if (output >= a.outputs)
    return e;
  if (then == TDM_HEADS) {
    const int half = heads->size / 2, h = output / half, i = output % half, first = h * heads->size + i;
    e.scale = tdm_scale_of(a.scales, first);
    e.other_scale = tdm_scale_of(a.scales, first + half);
    if (heads->bias) {
      e.bias = heads->bias[first];
      e.other_bias = heads->bias[first + half];
    }
    if (h < heads->heads + heads->kv_heads)
      e.turn = tdm_turn_of(*heads, heads->positions[row], i);
    e.slot = heads->slots[row];
    return e;
  }
  e.scale = tdm_scale_of(a.scales, output);
  if (then == TDM_SWIGLU)
    e.other_scale = tdm_scale_of(a.up_scales, output);
  if (then == TDM_ADD) {
    e.x = ((const float *)a.out)[(int64_t)row * a.ldo + output];
    if (a.norm.squares)
      e.weight = a.norm.weight[output];
  }
  return e;
}

// tdm_finish does with a finished sum, of a row whose root is `root`, what `then` says. `up`
// is the other sum of SwiGLU. What it returns of add is what stands there now, and 0 past
// the outputs.
template <int then>
TDM_INLINE float tdm_finish(const tdm_product_args &a, int row, int output, float sum, float up, float root, const tdm_extra &extra) {
  if (output >= a.outputs)
    return 0;
  sum = sum * extra.scale;
  const int64_t at = (int64_t)row * a.ldo + output;
  if (then == TDM_STORE) {
    ((float *)a.out)[at] = sum * root;
  } else if (then == TDM_ADD) {
    const float x = extra.x + sum;
    ((float *)a.out)[at] = x;
    if (a.norm.squares)
      tdm_scale(a.norm, row, output, x, extra.weight);
    return x;
  } else {
    ((uint16_t *)a.out)[at] = tdm_bf16(tdm_silu(sum * root) * (up * extra.other_scale * root));
  }
  return 0;
}

// tdm_finish_heads is tdm_finish for an output of heads, and does what tdm_heads does.
TDM_INLINE void tdm_finish_heads(const tdm_product_args &a, const tdm_heads_args &heads, int row, int output, float low, float high, float root, const tdm_extra &extra) {
  if (output >= a.outputs)
    return;
  const int half = heads.size / 2, h = output / half, i = output % half;
  low = low * extra.scale * root;
  high = high * extra.other_scale * root;
  if (heads.bias) {
    low = low + extra.bias;
    high = high + extra.other_bias;
  }
  if (h < heads.heads + heads.kv_heads)
    tdm_rotate(extra.turn, low, high);
  uint16_t *to = tdm_head_place(heads, row, extra.slot, h);
  to[i] = tdm_bf16(low);
  to[half + i] = tdm_bf16(high);
}

#endif
