// tdm_product_wide_*: products of many rows with bf16 weights by wgmma, for sm_90a. A block
// has 128 lines of weights (of SwiGLU 64 of w and 64 of up) and TDM_WIDE_ROWS rows, each of its
// two warpgroups half of the lines. Both operands come in stages of 64 k by asynchronous copies
// of 8 bytes, which put together what one instruction sums: the 16 k of one of the four
// mma.sync that other kernels make of these 64. So each sum is the chain that those make of it.
//
// A line's 64 k are 16 pieces of 8 bytes: piece 8*half + 2*t + h is what lane t of four has
// for product h of a half. It goes to instruction 2*half + h, whose 16 k are two columns, and
// there to place t.
#ifndef TDM_PRODUCT_WIDE_H
#define TDM_PRODUCT_WIDE_H

#include "product_tiles.h"

#ifndef TDM_EMULATION
#include "device_wgmma.h"
#endif

template <int then> TDM_INLINE void tdm_product_wide(const tdm_product_args &a) {
  constexpr int rows = TDM_WIDE_ROWS, stages = TDM_WIDE_STAGES, ahead = stages - 2; // blocks of K
  constexpr int weight_column = TDM_WIDE_COLUMN(tdm_lines), row_column = TDM_WIDE_COLUMN(rows);
  constexpr int row_offset = 8 * weight_column; // in a stage
  tdm_let_next();
  const int count = *a.count;
  const tdm_tile tile = tdm_tile_of((count + rows - 1) / rows);
  const int row0 = tile.rows * rows, output0 = tile.outputs * (tdm_lines / 16) * tdm_per_tile(then);
  if (row0 >= count) {
    tdm_await_earlier();
    return;
  }
  uint8_t *shared = tdm_shared();
  const int blocks = a.k / TDM_K, length = tdm_slice_blocks(a.k);

  // Sixteen neighbouring threads copy a line, and then every sixteenth one.
  constexpr int apart = TDM_WIDE_THREADS / 16;
  const int piece = tdm_thread() % 16, line = tdm_thread() / 16;
  const int instruction = piece / 8 * 2 + piece % 2, place = piece % 8 / 2, column = 2 * instruction + place / 2;
  const int in_column = line / 8 * 128 + line % 8 * 16 + place % 2 * 8;
  uint8_t *to_weights = shared + column * weight_column + in_column;
  uint8_t *to_rows = shared + row_offset + column * row_column + in_column;
  const uint8_t *w = tdm_weight_row<then, tdm_weights_bf16>(a, nullptr, output0, line) + 8 * piece;
  const uint8_t *x = (const uint8_t *)(a.a + (int64_t)(row0 + line) * a.lda) + 8 * piece;
  const int64_t next_weights = tdm_per_tile(then) * a.ldw * 2, next_rows = apart * a.lda * 2; // bytes
  const int real = count - row0 - line; // rows from here on; the others are zeros
  const auto ask_weights = [&](int b, int stage) __attribute__((always_inline)) {
    if (b < blocks) {
      const uint8_t *from = w + (int64_t)b * (TDM_K * 2);
      TDM_UNROLL
      for (int i = 0; i < tdm_lines / apart; i++, from += next_weights)
        tdm_copy8(to_weights + stage * TDM_WIDE_STAGE + apart * 16 * i, from, true);
    }
  };
  const auto ask_rows = [&](int b, int stage) __attribute__((always_inline)) {
    if (b < blocks) {
      const uint8_t *from = x + (int64_t)b * (TDM_K * 2);
      TDM_UNROLL
      for (int i = 0; i < rows / apart; i++, from += next_rows)
        tdm_copy8(to_rows + stage * TDM_WIDE_STAGE + apart * 16 * i, from, apart * i < real);
    }
    tdm_copy_commit();
  };
  for (int i = 0; i < ahead; i++)
    ask_weights(i, i);
  tdm_await_earlier(); // the rows are its results, and nothing else is
  for (int i = 0; i < ahead; i++)
    ask_rows(i, i);

  const int warp = tdm_thread() / 32, first_line = warp / 4 * 64; // of the warpgroup
  const uint64_t weights = tdm_matrix(shared + first_line * 16, weight_column, 128);
  const uint64_t activations = tdm_matrix(shared + row_offset, row_column, 128);
  float sum[24][4] = {}, total[1][24][4];
  TDM_UNROLL
  for (int n = 0; n < 4 * 24; n++)
    total[0][n / 4][n % 4] = -0.0f; // which changes nothing that is added to it
  int stage = 0, free = ahead; // of the block, and of the one to ask for
  for (int begin = 0; begin < blocks; begin += length) {
    const int end = tdm_least(begin + length, blocks);
    for (int b = begin; b < end; b++) {
      tdm_copy_wait<ahead - 1>();
      tdm_copy_show();
      tdm_barrier(); // also: nobody reads block b - 2 any more
      tdm_wgmma_begin();
      TDM_UNROLL
      for (int i = 0; i < 4; i++) {
        const uint32_t from = stage * (TDM_WIDE_STAGE / 16);
        tdm_wgmma(sum, weights + (from + 2 * i * (weight_column / 16)), activations + (from + 2 * i * (row_column / 16)), i > 0 || b > begin);
      }
      tdm_wgmma_commit();
      ask_weights(b + ahead, free);
      ask_rows(b + ahead, free);
      stage = stage + 1 == stages ? 0 : stage + 1;
      free = free + 1 == stages ? 0 : free + 1;
      tdm_wgmma_wait();
    }
    tdm_wgmma_end(sum);
    TDM_UNROLL
    for (int n = 0; n < 4 * 24; n++)
      total[0][n / 4][n % 4] = total[0][n / 4][n % 4] + sum[n / 4][n % 4];
  }
  tdm_finish_sums<then>(a, total, row0, count, output0 + warp * tdm_per_tile(then));
}

#define TDM_WIDE(name, then) \
  TDM_KERNEL(TDM_WIDE_THREADS, 1) tdm_product_wide_##name(const tdm_product_args a) { tdm_product_wide<then>(a); }

#endif
