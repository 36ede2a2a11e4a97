// tdm_product_tiled_*: products of many rows, at the speed of the tensor cores or of the
// weights, whichever is slower. A block has 128 lines of weights (of SwiGLU 64 of w and 64
// of up) and 64 or 128 rows; both come in stages of 64 k by asynchronous copies. Weights of
// 8 bits stay so in shared memory, and each warp makes bf16 of those that it reads. Each sum
// is the chain that a thin kernel makes of it: slices from zero, added in order.
//
// tdm_product_sliced_*: where outputs are too few to keep the GPU busy, a block computes
// one slice of the sums, and tdm_product_joined_* adds them.
#ifndef TDM_PRODUCT_TILED_H
#define TDM_PRODUCT_TILED_H

#include "product_tiles.h"

// tdm_place is where 16 bytes of a line are in a stage, of elements of so many bytes. A
// quarter of a warp reads four neighbouring chunks of two neighbouring lines at once. Of two
// bytes odd lines have their halves changed over, so that those share no bank; of one byte
// the two lines are 128 bytes side by side, which share none anyway.
template <int bytes> TDM_INLINE uint8_t *tdm_place(uint8_t *lines, int line, int chunk) {
  return lines + line * (TDM_K * bytes) + (bytes == 2 ? chunk ^ (line & 1) << 2 : chunk) * 16;
}

// tdm_parts is where the sums of a slice of a tile are: [row][line].
template <int rows> TDM_INLINE float *tdm_parts(const tdm_product_args &a, int per_block, int tile, int slice) {
  const int64_t tiles = (a.outputs + per_block - 1) / per_block;
  return a.parts + ((tdm_block_y() * TDM_SLICES + slice) * tiles + tile) * (rows * tdm_lines);
}

template <int then, int rows, bool sliced, class format> TDM_INLINE void tdm_product_tiled(const tdm_product_args &a) {
  constexpr int per_tile = tdm_per_tile(then), per_block = tdm_lines / 16 * per_tile; // outputs
  constexpr int stage_bytes = TDM_TILED_STAGE(rows, format::bytes), stages = TDM_TILED_SHARED / stage_bytes;
  constexpr int block_bytes = TDM_K * format::bytes, weight_bytes = tdm_lines * block_bytes; // of a line; of a stage
  // A warp has 16 * tiles lines and 8 * columns rows, which is what its sums, twice, leave room
  // for; across are side by side. Lines are read once if a warp has all rows.
  constexpr int threads = TDM_TILED_THREADS(rows), tiles = rows / 32, columns = 16 / tiles, across = 8 / tiles;
  tdm_let_next();
  const int count = *a.count;
  const tdm_tile at = sliced ? tdm_tile{tdm_block_x() / TDM_SLICES, tdm_block_y()} : tdm_tile_of((count + rows - 1) / rows);
  const int row0 = at.rows * rows, tile = at.outputs, slice = sliced ? tdm_block_x() % TDM_SLICES : 0;
  if (row0 >= count) {
    tdm_await_earlier();
    return;
  }
  const int thread = tdm_thread(), warp = thread / 32, lane = thread % 32;
  const int group = lane / 4, quarter = lane % 4;
  const int output0 = tile * per_block;
  uint8_t *shared = tdm_shared();

  // Blocks of K: all, or the slice's.
  const int all = a.k / TDM_K, length = tdm_slice_blocks(a.k);
  const int begin = slice * length, end = sliced ? tdm_least(begin + length, all) : all;
  if (begin >= end) {
    tdm_await_earlier();
    return;
  }

  // A thread copies a chunk of every so many rows, and of every so many lines.
  constexpr int chunks = block_bytes / 16, apart = threads / chunks, rows_apart = threads / 8;
  const int chunk = thread % 8, line0 = thread / 8;
  const int weight_chunk = thread % chunks, weight_line0 = thread / chunks;
  const uint8_t *w[tdm_lines / apart];
  const uint16_t *x[rows / rows_apart];
  TDM_UNROLL
  for (int i = 0; i < tdm_lines / apart; i++) {
    const int line = weight_line0 + apart * i;
    w[i] = tdm_weight_row<then, format>(a, nullptr, output0 + line / 16 * per_tile, line % 16) + 16 * weight_chunk;
  }
  TDM_UNROLL
  for (int i = 0; i < rows / rows_apart; i++)
    x[i] = a.a + (int64_t)tdm_least(row0 + line0 + rows_apart * i, count - 1) * a.lda + 8 * chunk;
  const auto ask_weights = [&](int b) __attribute__((always_inline)) {
    if (b < end) {
      uint8_t *stage = shared + b % stages * stage_bytes;
      TDM_UNROLL
      for (int i = 0; i < tdm_lines / apart; i++)
        tdm_copy16(tdm_place<format::bytes>(stage, weight_line0 + apart * i, weight_chunk), w[i] + (int64_t)b * block_bytes, true);
    }
  };
  const auto ask_rows = [&](int b) __attribute__((always_inline)) {
    if (b < end) {
      uint8_t *stage = shared + b % stages * stage_bytes;
      TDM_UNROLL
      for (int i = 0; i < rows / rows_apart; i++)
        tdm_copy16(tdm_place<2>(stage + weight_bytes, line0 + rows_apart * i, chunk), x[i] + (int64_t)b * TDM_K, true);
    }
    tdm_copy_commit();
  };

  const int line1 = warp % across * 16 * tiles, row1 = warp / across * 8 * columns;
  float sum[tiles][columns][4] = {}, total[sliced ? 1 : tiles][columns][4] = {};
  for (int i = 0; i < stages - 1; i++)
    ask_weights(begin + i);
  tdm_await_earlier(); // the rows are its results, and nothing else is
  for (int i = 0; i < stages - 1; i++)
    ask_rows(begin + i);
  // mma takes four neighbouring registers of two lines, of which a load fills four of one.
  // A value that is made of what was loaded goes where it is wanted, once for all products
  // that take it; what was only loaded ptxas moves there for each of them.
  const uint32_t zero = tdm_zero(count);
  int left = length; // blocks that the slice still has
  bool first = true;
  for (int b = begin; b < end; b++) {
    tdm_copy_wait<stages - 2>();
    tdm_barrier();
    ask_weights(b + stages - 1);
    ask_rows(b + stages - 1);
    uint8_t *stage = shared + b % stages * stage_bytes;
    tdm_quad pieces[tiles][2][format::pieces]; // read when the first half of them is wanted
    TDM_UNROLL
    for (int half = 0; half < 2; half++) {
      tdm_quad p[tiles][2];
      TDM_UNROLL
      for (int i = 0; i < tiles; i++) {
        TDM_UNROLL
        for (int r = 0; r < 2; r++) {
          if (half < format::pieces)
            pieces[i][r][half] = tdm_shared16(tdm_place<format::bytes>(stage, line1 + 16 * i + group + 8 * r, 4 * half + quarter));
          p[i][r] = format::half(pieces[i][r], half);
          if (format::bytes == 2) // else they are other registers already
            p[i][r] = p[i][r] ^ zero;
        }
      }
      TDM_UNROLL
      for (int j = 0; j < columns; j++) {
        const tdm_quad q = tdm_shared16(tdm_place<2>(stage + weight_bytes, row1 + 8 * j + group, 4 * half + quarter));
        TDM_UNROLL
        for (int i = 0; i < tiles; i++)
          tdm_mma2(sum[i][j], p[i][0], p[i][1], q);
      }
    }
    if (!sliced && (--left == 0 || b + 1 == end)) {
      left = length;
      TDM_UNROLL
      for (int n = 0; n < 4 * columns * tiles; n++) {
        float &s = sum[n / 4 / columns][n / 4 % columns][n % 4], &t = total[n / 4 / columns][n / 4 % columns][n % 4];
        t = first ? s : t + s;
        s = 0;
      }
      first = false;
    }
  }

  if (!sliced) {
    tdm_finish_sums<then>(a, total, row0 + row1, count, output0 + line1 / 16 * per_tile);
    return;
  }
  float *parts = tdm_parts<rows>(a, per_block, tile, slice);
  TDM_UNROLL
  for (int j = 0; j < columns; j++) {
    TDM_UNROLL
    for (int c = 0; c < 2; c++) {
      const int row = row1 + 8 * j + 2 * quarter + c;
      if (row0 + row >= count)
        continue;
      TDM_UNROLL
      for (int i = 0; i < tiles; i++) {
        const int line = line1 + 16 * i + group;
        parts[row * tdm_lines + line] = sum[i][j][c];
        parts[row * tdm_lines + line + 8] = sum[i][j][c + 2];
      }
    }
  }
}

// A block joins eight rows of a tile, a thread four outputs of a row at a time.
template <int then> TDM_INLINE void tdm_product_joined(const tdm_product_args &a) {
  tdm_begin();
  constexpr int rows = TDM_SLICED_ROWS;
  constexpr int per_tile = tdm_per_tile(then), per_block = tdm_lines / 16 * per_tile;
  const int tile = tdm_block_x() / (rows / 8), count = *a.count;
  const int row0 = tdm_block_x() % (rows / 8) * 8, first_row = tdm_block_y() * rows + row0;
  const int used = (a.k / TDM_K + tdm_slice_blocks(a.k) - 1) / tdm_slice_blocks(a.k);
  const int64_t stride = tdm_parts<rows>(a, per_block, 0, 1) - tdm_parts<rows>(a, per_block, 0, 0);
  float *roots = (float *)tdm_shared();
  if (then != TDM_ADD) {
    const int warp = tdm_thread() / 32;
    if (first_row + warp < count) {
      float root[1];
      tdm_roots_of(a.norm, first_row + warp, count, root);
      if (tdm_thread() % 32 == 0)
        roots[warp] = root[0];
    }
    tdm_barrier();
  }
  static_assert(then != TDM_ADD || per_block == 4 * 32, "a warp, which exchanges squares, has one row");
  for (int n = tdm_thread(); n < 8 * per_block / 4; n += TDM_PRODUCT_THREADS) {
    const int row = n / (per_block / 4), output = n % (per_block / 4) * 4;
    if (first_row + row >= count)
      return;
    const float *from = tdm_parts<rows>(a, per_block, tile, 0) + (row0 + row) * tdm_lines + output / per_tile * 16 + output % per_tile;
    // All is asked for before the first of it is used.
    constexpr int sums = then == TDM_SWIGLU ? 2 : 1;
    tdm_floats slices[TDM_SLICES][sums];
    TDM_UNROLL
    for (int s = 0; s < TDM_SLICES; s++) {
      TDM_UNROLL
      for (int i = 0; i < sums; i++)
        slices[s][i] = *(const tdm_floats *)(from + tdm_least(s, used - 1) * stride + 8 * i);
    }
    tdm_extra extra[4];
    TDM_UNROLL
    for (int j = 0; j < 4; j++)
      extra[j] = tdm_ask<then>(a, nullptr, first_row + row, tile * per_block + output + j);
    tdm_floats total = slices[0][0], up = slices[0][sums - 1];
    TDM_UNROLL
    for (int s = 1; s < TDM_SLICES; s++) {
      total = s < used ? total + slices[s][0] : total;
      up = s < used ? up + slices[s][sums - 1] : up;
    }
    const float root = then == TDM_ADD ? 1 : roots[row];
    float square[4];
    TDM_UNROLL
    for (int j = 0; j < 4; j++) {
      const float x = tdm_finish<then>(a, first_row + row, tile * per_block + output + j, total[j], up[j], root, extra[j]);
      square[j] = x * x;
    }
    if (then == TDM_ADD && a.norm.squares) { // four neighbours have sixteen outputs
      for (int j = 0; j < 4; j++) {
        square[j] = square[j] + tdm_shuffle(square[j], 2);
        square[j] = square[j] + tdm_shuffle(square[j], 1);
      }
      if (output % TDM_SQUARES == 0 && tile * per_block + output < a.outputs)
        tdm_leave(a.norm, first_row + row, tile * per_block + output, (square[0] + square[2]) + (square[1] + square[3]));
    }
  }
}

#define TDM_TILED(name, then, format, suffix)                                                                                          \
  TDM_KERNEL(TDM_TILED_THREADS(128), 1) tdm_product_tiled_##name##_128##suffix(const tdm_product_args a) { tdm_product_tiled<then, 128, false, format>(a); } \
  TDM_KERNEL(TDM_TILED_THREADS(64), 2) tdm_product_tiled_##name##_64##suffix(const tdm_product_args a) { tdm_product_tiled<then, 64, false, format>(a); }   \
  TDM_KERNEL(TDM_TILED_THREADS(TDM_SLICED_ROWS), 2) tdm_product_sliced_##name##suffix(const tdm_product_args a) { tdm_product_tiled<then, TDM_SLICED_ROWS, true, format>(a); }

// TDM_PRODUCTS_TILED makes the tiled and sliced kernels of a format of weights. Their names
// end in the suffix.
#define TDM_PRODUCTS_TILED(format, suffix)     \
  TDM_TILED(store, TDM_STORE, format, suffix)  \
  TDM_TILED(add, TDM_ADD, format, suffix)      \
  TDM_TILED(swiglu, TDM_SWIGLU, format, suffix)

#endif
