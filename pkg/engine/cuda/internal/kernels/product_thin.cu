// tdm_product_thin_*: products of few rows, at the speed of reading the weights. Each of
// the eight warps of a block streams one slice of K of its outputs straight from global
// memory into the fragments of mma.sync; the slices' sums meet in shared memory.
//
// A lane's 16 bytes at k = 64b + 8t and 64b + 32 + 8t (t = lane%4) are four of the
// instruction's pairs. Which k's they are is the same for weights and activations, so the
// sum is over all of them, in an order that is part of the class.
#include "product.h"

// How a thin kernel of some number of rows goes about it.
template <int rows> struct tdm_thin {
  static constexpr int tiles = TDM_THIN_TILES(rows);            // of 16 outputs a block
  static constexpr int columns = rows / 8;                      // of 8 rows
  static constexpr int weights = rows <= 16 ? 4 : 2;            // blocks of K on their way
  static constexpr int activations = rows <= 8 ? 4 : rows <= 16 ? 2 : 1; // likewise
  static constexpr int line = TDM_THIN_LINE(rows);              // floats of a row in shared memory
};

template <int then, int rows> TDM_INLINE void tdm_product_thin(const tdm_product_args &a) {
  using thin = tdm_thin<rows>;
  constexpr int per_tile = then == TDM_SWIGLU ? 8 : 16;
  const int count = *a.count;
  if (count <= 0)
    return;
  const int warp = tdm_thread() / 32, lane = tdm_thread() % 32;
  const int group = lane / 4, quarter = lane % 4;
  const int output0 = tdm_block_x() * thin::tiles * per_tile;
  const int length = tdm_slice_blocks(a.k);
  const int begin = warp * length, end = tdm_least(begin + length, a.k / TDM_K);

  const uint16_t *w[thin::tiles][2];
  for (int i = 0; i < thin::tiles; i++) {
    w[i][0] = tdm_weight_row<then>(a, output0 + i * per_tile, group) + 8 * quarter;
    w[i][1] = tdm_weight_row<then>(a, output0 + i * per_tile, group + 8) + 8 * quarter;
  }
  // Rows past the count are the last one once more: nobody looks at their sums.
  const uint16_t *x[thin::columns];
  for (int j = 0; j < thin::columns; j++)
    x[j] = a.a + (int64_t)tdm_least(8 * j + group, count - 1) * a.lda + 8 * quarter;

  float sum[thin::tiles][thin::columns][4] = {};
  tdm_quad weights[thin::weights][thin::tiles][2][2], activations[thin::activations][thin::columns][2];
  TDM_UNROLL
  for (int s = 0; s < thin::weights; s++) {
    if (begin + s < end) {
      TDM_UNROLL
      for (int i = 0; i < thin::tiles; i++) {
        TDM_UNROLL
        for (int half = 0; half < 4; half++)
          weights[s][i][half / 2][half % 2] = tdm_stream16(w[i][half / 2] + (int64_t)(begin + s) * TDM_K + half % 2 * 32);
      }
      if (s < thin::activations) {
        TDM_UNROLL
        for (int j = 0; j < thin::columns; j++) {
          activations[s][j][0] = tdm_load16(x[j] + (begin + s) * TDM_K);
          activations[s][j][1] = tdm_load16(x[j] + (begin + s) * TDM_K + 32);
        }
      }
    }
  }
  for (int b0 = begin; b0 < end; b0 += thin::weights) {
    TDM_UNROLL
    for (int s = 0; s < thin::weights; s++) {
      const int b = b0 + s, next = b + thin::weights, after = b + thin::activations;
      constexpr int turns = thin::activations;
      if (b < end) {
        TDM_UNROLL
        for (int j = 0; j < thin::columns; j++) {
          TDM_UNROLL
          for (int half = 0; half < 2; half++) {
            TDM_UNROLL
            for (int i = 0; i < thin::tiles; i++)
              tdm_mma2(sum[i][j], weights[s][i][0][half], weights[s][i][1][half], activations[s % turns][j][half]);
          }
          if (after < end) {
            activations[s % turns][j][0] = tdm_load16(x[j] + after * TDM_K);
            activations[s % turns][j][1] = tdm_load16(x[j] + after * TDM_K + 32);
          }
        }
        if (next < end) {
          TDM_UNROLL
          for (int i = 0; i < thin::tiles; i++) {
            TDM_UNROLL
            for (int half = 0; half < 4; half++)
              weights[s][i][half / 2][half % 2] = tdm_stream16(w[i][half / 2] + (int64_t)next * TDM_K + half % 2 * 32);
          }
        }
      }
    }
  }

  // Sums in shared memory are [slice][row][output].
  float *slices = (float *)tdm_shared();
  for (int i = 0; i < thin::tiles; i++) {
    for (int j = 0; j < thin::columns; j++) {
      for (int c = 0; c < 4; c++)
        slices[(warp * rows + 8 * j + 2 * quarter + c % 2) * thin::line + 16 * i + group + c / 2 * 8] = sum[i][j][c];
    }
  }
  tdm_barrier();
  const int used = (a.k / TDM_K + length - 1) / length;
  constexpr int outputs = thin::tiles * per_tile;
  for (int n = tdm_thread(); n < tdm_least(count, rows) * outputs; n += TDM_PRODUCT_THREADS) {
    const int row = n / outputs, output = n % outputs;
    const float *first = slices + row * thin::line + output / per_tile * 16 + output % per_tile;
    float total = first[0], up = then == TDM_SWIGLU ? first[8] : 0;
    for (int s = 1; s < used; s++) {
      total = total + first[s * rows * thin::line];
      if (then == TDM_SWIGLU)
        up = up + first[s * rows * thin::line + 8];
    }
    tdm_finish<then>(a, row, output0 + output, total, up);
  }
}

#define TDM_THIN(name, then, rows) \
  TDM_KERNEL(TDM_PRODUCT_THREADS, (rows) <= 16 ? 2 : 1) tdm_product_thin_##name##_##rows(const tdm_product_args a) { tdm_product_thin<then, rows>(a); }
#define TDM_THINS(name, then) \
  TDM_THIN(name, then, 8) TDM_THIN(name, then, 16) TDM_THIN(name, then, 32)

TDM_THINS(store, TDM_STORE)
TDM_THINS(add, TDM_ADD)
TDM_THINS(swiglu, TDM_SWIGLU)
