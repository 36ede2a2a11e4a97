// tdm_product_thin_*: products of few rows, at the speed of reading the weights. Each of
// the eight warps of a block streams one slice of K of its outputs through shared memory
// into the fragments of mma.sync; the slices' sums meet in shared memory.
//
// What a lane has of a block of K is k = 64b + 8t.. and 64b + 32 + 8t.. (t = lane%4), eight
// each: two of the instruction's pairs, twice. Which k's they are is the same for weights
// and activations, so the sum is over all of them, in an order that is part of the class.
// The weights of 8 bits are 16 bytes, which become bf16 only when they are multiplied.
//
// A lane copies what it will multiply itself, so nobody waits for anybody else. Weights on
// their way take no registers like this, and the first of them are there when the launch
// before this one ends.
#ifndef TDM_PRODUCT_THIN_H
#define TDM_PRODUCT_THIN_H

#include "product.h"

// How a thin kernel of some number of rows goes about it.
template <int rows, class format> struct tdm_thin {
  static constexpr int columns = rows / 8;              // of 8 rows
  static constexpr int activations = rows <= 8 ? 2 : 1; // blocks of K on their way
  static constexpr int quads = 2 * format::pieces;      // that a lane has of a block of K
  static constexpr int stages = TDM_THIN_WEIGHTS / (quads * 16 * TDM_PRODUCT_THREADS);
};

// `heads` is of TDM_HEADS.
template <int then, int rows, class format>
TDM_INLINE void tdm_product_thin(const tdm_product_args &a, const tdm_heads_args *heads = nullptr) {
  using thin = tdm_thin<rows, format>;
  constexpr int pieces = format::pieces, block_bytes = TDM_K * format::bytes;
  constexpr int outputs = TDM_THIN_OUTPUTS(tdm_paired(then)), line = TDM_THIN_LINE;
  tdm_let_next();
  const int count = *a.count; // on its way while the first weights are asked for
  const int warp = tdm_thread() / 32, lane = tdm_thread() % 32;
  const int group = lane / 4, quarter = lane % 4;
  const int output0 = tdm_block_x() * outputs;
  const int length = tdm_slice_blocks(a.k);
  const int begin = warp * length, end = tdm_least(begin + length, a.k / TDM_K);

  const uint8_t *w[2];
  for (int r = 0; r < 2; r++)
    w[r] = tdm_weight_row<then, format>(a, heads, output0, group + 8 * r) + 16 * quarter;
  // A stage is a block of K of all warps: [quad][thread].
  uint8_t *mine = tdm_shared() + 16 * tdm_thread();
  const auto ask = [&](int b, int stage) __attribute__((always_inline)) {
    if (b < end) {
      TDM_UNROLL
      for (int n = 0; n < thin::quads; n++)
        tdm_stream_copy16(mine + (stage * thin::quads + n) * (16 * TDM_PRODUCT_THREADS),
                          w[n / pieces] + (int64_t)b * block_bytes + n % pieces * 64);
    }
    tdm_copy_commit();
  };
  TDM_UNROLL
  for (int s = 0; s < thin::stages; s++)
    ask(begin + s, s);

  tdm_await_earlier(); // weights are all that is there before
  // Rows past the count are the last one once more: nobody looks at their sums.
  const uint16_t *x[thin::columns];
  for (int j = 0; j < thin::columns; j++)
    x[j] = a.a + (int64_t)tdm_least(8 * j + group, tdm_most(count, 1) - 1) * a.lda + 8 * quarter;
  float sum[thin::columns][4] = {};
  tdm_quad activations[thin::activations][thin::columns][2];
  TDM_UNROLL
  for (int s = 0; s < thin::activations; s++) {
    if (begin + s < end) {
      TDM_UNROLL
      for (int j = 0; j < thin::columns; j++) {
        activations[s][j][0] = tdm_load16(x[j] + (begin + s) * TDM_K);
        activations[s][j][1] = tdm_load16(x[j] + (begin + s) * TDM_K + 32);
      }
    }
  }
  // The rows' roots are behind the stages; sums take the stages' place when all is
  // multiplied: [slice][row][line].
  float *slices = (float *)tdm_shared(), *roots = (float *)(tdm_shared() + TDM_THIN_WEIGHTS);
  if (then != TDM_ADD && warp < count) {
    float root[thin::columns];
    tdm_roots_of(a.norm, warp, count, root);
    if (lane == 0) {
      TDM_UNROLL
      for (int j = 0; j < thin::columns; j++)
        roots[warp + 8 * j] = root[j];
    }
  }
  // A thread finishes an output of a row.
  static_assert(rows * outputs <= TDM_PRODUCT_THREADS, "outputs of a thread");
  const int row = tdm_thread() / outputs, output = tdm_thread() % outputs;
  const bool real = row < tdm_least(count, rows);
  const tdm_extra extra = real ? tdm_ask<then>(a, heads, row, output0 + output) : tdm_extra{};
  for (int b0 = begin; b0 < end; b0 += thin::stages) {
    TDM_UNROLL
    for (int s = 0; s < thin::stages; s++) {
      const int b = b0 + s, after = b + thin::activations;
      constexpr int turns = thin::activations;
      if (b < end) {
        tdm_copy_wait<thin::stages - 1>();
        tdm_quad weights[2][pieces];
        TDM_UNROLL
        for (int n = 0; n < thin::quads; n++)
          weights[n / pieces][n % pieces] = tdm_shared16(mine + (s * thin::quads + n) * (16 * TDM_PRODUCT_THREADS));
        TDM_UNROLL
        for (int half = 0; half < 2; half++) {
          const tdm_quad w0 = format::half(weights[0], half), w1 = format::half(weights[1], half);
          TDM_UNROLL
          for (int j = 0; j < thin::columns; j++)
            tdm_mma2(sum[j], w0, w1, activations[s % turns][j][half]);
        }
        ask(b + thin::stages, s);
        if (after < end) {
          TDM_UNROLL
          for (int j = 0; j < thin::columns; j++) {
            activations[s % turns][j][0] = tdm_load16(x[j] + after * TDM_K);
            activations[s % turns][j][1] = tdm_load16(x[j] + after * TDM_K + 32);
          }
        }
      }
    }
  }
  tdm_copy_wait<0>();
  tdm_barrier();

  for (int j = 0; j < thin::columns; j++) {
    for (int c = 0; c < 4; c++)
      slices[(warp * rows + 8 * j + 2 * quarter + c % 2) * line + group + c / 2 * 8] = sum[j][c];
  }
  tdm_barrier();
  const int used = (a.k / TDM_K + length - 1) / length;
  float now = 0; // what stands there
  if (real) {
    const float *first = slices + row * line + output;
    float total = first[0], up = tdm_paired(then) ? first[8] : 0;
    for (int s = 1; s < used; s++) {
      total = total + first[s * rows * line];
      if (tdm_paired(then))
        up = up + first[s * rows * line + 8];
    }
    if (then == TDM_HEADS)
      tdm_finish_heads(a, *heads, row, output0 + output, total, up, roots[row], extra);
    else
      now = tdm_finish<then>(a, row, output0 + output, total, up, then == TDM_ADD ? 1 : roots[row], extra);
  }
  if (then == TDM_ADD && a.norm.squares) { // sixteen neighbours have sixteen outputs
    float square = now * now;
    for (int apart = TDM_SQUARES / 2; apart > 0; apart /= 2)
      square = square + tdm_shuffle(square, apart);
    if (real && output % TDM_SQUARES == 0 && output0 + output < a.outputs)
      tdm_leave(a.norm, row, output0 + output, square);
  }
}

#define TDM_THIN(name, then, rows, format, suffix) \
  TDM_KERNEL(TDM_PRODUCT_THREADS, 3) tdm_product_thin_##name##_##rows##suffix(const tdm_product_args a) { tdm_product_thin<then, rows, format>(a); }
#define TDM_THINS(name, then, format, suffix) \
  TDM_THIN(name, then, 8, format, suffix) TDM_THIN(name, then, 16, format, suffix)

#define TDM_THIN_HEADS(rows, format, suffix) \
  TDM_KERNEL(TDM_PRODUCT_THREADS, 3) tdm_product_thin_heads_##rows##suffix(const tdm_product_heads_args a) { tdm_product_thin<TDM_HEADS, rows, format>(a.product, &a.heads); }

// TDM_PRODUCTS_THIN makes the thin kernels of a format of weights. Their names end in the
// suffix.
#define TDM_PRODUCTS_THIN(format, suffix)     \
  TDM_THINS(store, TDM_STORE, format, suffix) \
  TDM_THINS(add, TDM_ADD, format, suffix)     \
  TDM_THINS(swiglu, TDM_SWIGLU, format, suffix) \
  TDM_THIN_HEADS(8, format, suffix)           \
  TDM_THIN_HEADS(16, format, suffix)

#endif
