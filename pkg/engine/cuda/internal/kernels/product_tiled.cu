// tdm_product_tiled_*: products of many rows, at the speed of the tensor cores or of the
// weights, whichever is slower. A block has 128 lines of weights (of SwiGLU 64 of w and 64
// of up) and 64 or 128 rows; both come in stages of 64 k by asynchronous copies. Each sum
// is the chain that a thin kernel makes of it: slices from zero, added in order.
//
// tdm_product_sliced_*: where outputs are too few to keep the GPU busy, a block computes
// one slice of the sums, and tdm_product_joined_* adds them.
#include "product.h"

constexpr int tdm_lines = 128;

// tdm_place is where 16 bytes of a line are in a stage. Odd lines have their halves
// changed over, so that the two lines that a quarter of a warp reads share no bank.
TDM_INLINE uint8_t *tdm_place(uint8_t *lines, int line, int chunk) {
  return lines + line * (TDM_K * 2) + (chunk ^ (line & 1) << 2) * 16;
}

// tdm_parts is where the sums of a slice of a tile are: [row][line].
template <int rows> TDM_INLINE float *tdm_parts(const tdm_product_args &a, int per_block, int tile, int slice) {
  const int64_t tiles = (a.outputs + per_block - 1) / per_block;
  return a.parts + ((tdm_block_y() * TDM_SLICES + slice) * tiles + tile) * (rows * tdm_lines);
}

template <int then, int rows, bool sliced> TDM_INLINE void tdm_product_tiled(const tdm_product_args &a) {
  constexpr int per_tile = then == TDM_SWIGLU ? 8 : 16, per_block = tdm_lines / 16 * per_tile; // outputs
  constexpr int stage_bytes = (tdm_lines + rows) * TDM_K * 2, stages = TDM_TILED_STAGES(rows);
  constexpr int tiles = rows / 32, across = 8 / tiles; // of 16 lines a warp; warps side by side
  const int count = *a.count, row0 = tdm_block_y() * rows;
  if (row0 >= count)
    return;
  const int thread = tdm_thread(), warp = thread / 32, lane = thread % 32;
  const int group = lane / 4, quarter = lane % 4;
  const int tile = sliced ? tdm_block_x() / TDM_SLICES : tdm_block_x(), slice = sliced ? tdm_block_x() % TDM_SLICES : 0;
  const int output0 = tile * per_block;
  uint8_t *shared = tdm_shared();

  // Blocks of K: all, or the slice's.
  const int all = a.k / TDM_K, length = tdm_slice_blocks(a.k);
  const int begin = slice * length, end = sliced ? tdm_least(begin + length, all) : all;
  if (begin >= end)
    return;

  // A thread copies a chunk of every 32nd line of both.
  const int chunk = thread % 8, line0 = thread / 8;
  const uint16_t *w[tdm_lines / 32], *x[rows / 32];
  TDM_UNROLL
  for (int i = 0; i < tdm_lines / 32; i++) {
    const int line = line0 + 32 * i;
    w[i] = tdm_weight_row<then>(a, output0 + line / 16 * per_tile, line % 16) + 8 * chunk;
  }
  TDM_UNROLL
  for (int i = 0; i < rows / 32; i++)
    x[i] = a.a + (int64_t)tdm_least(row0 + line0 + 32 * i, count - 1) * a.lda + 8 * chunk;
  const auto ask = [&](int b) __attribute__((always_inline)) {
    if (b < end) {
      uint8_t *stage = shared + b % stages * stage_bytes;
      TDM_UNROLL
      for (int i = 0; i < tdm_lines / 32; i++)
        tdm_copy16(tdm_place(stage, line0 + 32 * i, chunk), w[i] + (int64_t)b * TDM_K, true);
      TDM_UNROLL
      for (int i = 0; i < rows / 32; i++)
        tdm_copy16(tdm_place(stage, tdm_lines + line0 + 32 * i, chunk), x[i] + (int64_t)b * TDM_K, true);
    }
    tdm_copy_commit();
  };

  // A warp has 16 * tiles lines and 32 rows.
  const int line1 = warp % across * 16 * tiles, row1 = warp / across * 32;
  float sum[tiles][4][4] = {}, total[sliced ? 1 : tiles][4][4] = {};
  for (int i = 0; i < stages - 1; i++)
    ask(begin + i);
  int left = length; // blocks that the slice still has
  bool first = true;
  for (int b = begin; b < end; b++) {
    tdm_copy_wait<stages - 2>();
    tdm_barrier();
    ask(b + stages - 1);
    uint8_t *stage = shared + b % stages * stage_bytes;
    TDM_UNROLL
    for (int half = 0; half < 2; half++) {
      tdm_quad p[tiles][2];
      TDM_UNROLL
      for (int i = 0; i < tiles; i++) {
        p[i][0] = tdm_shared16(tdm_place(stage, line1 + 16 * i + group, 4 * half + quarter));
        p[i][1] = tdm_shared16(tdm_place(stage, line1 + 16 * i + group + 8, 4 * half + quarter));
      }
      TDM_UNROLL
      for (int j = 0; j < 4; j++) {
        const tdm_quad q = tdm_shared16(tdm_place(stage, tdm_lines + row1 + 8 * j + group, 4 * half + quarter));
        TDM_UNROLL
        for (int i = 0; i < tiles; i++)
          tdm_mma2(sum[i][j], p[i][0], p[i][1], q);
      }
    }
    if (!sliced && (--left == 0 || b + 1 == end)) {
      left = length;
      TDM_UNROLL
      for (int n = 0; n < 16 * tiles; n++) {
        float &s = sum[n / 16][n / 4 % 4][n % 4], &t = total[n / 16][n / 4 % 4][n % 4];
        t = first ? s : t + s;
        s = 0;
      }
      first = false;
    }
  }

  float *parts = sliced ? tdm_parts<rows>(a, per_block, tile, slice) : nullptr;
  TDM_UNROLL
  for (int i = 0; i < tiles; i++) {
    const int line = line1 + 16 * i + group, output = output0 + (line1 / 16 + i) * per_tile + group;
    TDM_UNROLL
    for (int j = 0; j < 4; j++) {
      TDM_UNROLL
      for (int c = 0; c < 2; c++) {
        const int row = row1 + 8 * j + 2 * quarter + c;
        if (row0 + row >= count)
          continue;
        if (sliced) {
          parts[row * tdm_lines + line] = sum[i][j][c];
          parts[row * tdm_lines + line + 8] = sum[i][j][c + 2];
          continue;
        }
        tdm_finish<then>(a, row0 + row, output, total[i][j][c], total[i][j][c + 2]);
        if (then != TDM_SWIGLU)
          tdm_finish<then>(a, row0 + row, output + 8, total[i][j][c + 2], 0);
      }
    }
  }
}

// A block joins eight rows of a tile, a thread four outputs of a row at a time.
template <int then> TDM_INLINE void tdm_product_joined(const tdm_product_args &a) {
  constexpr int rows = TDM_SLICED_ROWS;
  constexpr int per_tile = then == TDM_SWIGLU ? 8 : 16, per_block = tdm_lines / 16 * per_tile;
  const int tile = tdm_block_x() / (rows / 8), row0 = tdm_block_x() % (rows / 8) * 8, first_row = tdm_block_y() * rows;
  const int used = (a.k / TDM_K + tdm_slice_blocks(a.k) - 1) / tdm_slice_blocks(a.k);
  const int64_t stride = tdm_parts<rows>(a, per_block, 0, 1) - tdm_parts<rows>(a, per_block, 0, 0);
  for (int n = tdm_thread(); n < 8 * per_block / 4; n += TDM_PRODUCT_THREADS) {
    const int row = row0 + n / (per_block / 4), output = n % (per_block / 4) * 4;
    if (first_row + row >= *a.count)
      return;
    const float *from = tdm_parts<rows>(a, per_block, tile, 0) + row * tdm_lines + output / per_tile * 16 + output % per_tile;
    tdm_floats total = {}, up = {};
    TDM_UNROLL
    for (int s = 0; s < TDM_SLICES; s++) {
      if (s >= used)
        continue;
      const tdm_floats one = *(const tdm_floats *)(from + s * stride);
      total = s == 0 ? one : total + one;
      if (then == TDM_SWIGLU) {
        const tdm_floats other = *(const tdm_floats *)(from + s * stride + 8);
        up = s == 0 ? other : up + other;
      }
    }
    for (int j = 0; j < 4; j++)
      tdm_finish<then>(a, first_row + row, tile * per_block + output + j, total[j], up[j]);
  }
}

#define TDM_TILED(name, then)                                                                                             \
  TDM_KERNEL(TDM_PRODUCT_THREADS, 1) tdm_product_tiled_##name##_128(const tdm_product_args a) { tdm_product_tiled<then, 128, false>(a); } \
  TDM_KERNEL(TDM_PRODUCT_THREADS, 2) tdm_product_tiled_##name##_64(const tdm_product_args a) { tdm_product_tiled<then, 64, false>(a); }   \
  TDM_KERNEL(TDM_PRODUCT_THREADS, 2) tdm_product_sliced_##name(const tdm_product_args a) { tdm_product_tiled<then, TDM_SLICED_ROWS, true>(a); } \
  TDM_KERNEL(TDM_PRODUCT_THREADS, 2) tdm_product_joined_##name(const tdm_product_args a) { tdm_product_joined<then>(a); }

TDM_TILED(store, TDM_STORE)
TDM_TILED(add, TDM_ADD)
TDM_TILED(swiglu, TDM_SWIGLU)
