// tdm_product_wide_*: products of many rows with bf16 weights by wgmma, for sm_90a. A block
// has 128 lines of weights (of SwiGLU 64 of w and 64 of up) and TDM_WIDE_ROWS rows, each of its
// two warpgroups half of the lines. Both come in stages of 64 k. A warp copies its own sixteen
// lines and reads them into registers. The rows come by one copy, of what tdm_arrange made of
// them.
//
// One instruction sums 16 k, which are those of one of the four mma.sync that other kernels
// make of these 64. So each sum is the chain that those make of it.
#ifndef TDM_PRODUCT_WIDE_H
#define TDM_PRODUCT_WIDE_H

#include "product_tiles.h"

#ifndef TDM_EMULATION
#include "device_wgmma.h"
#endif

constexpr int tdm_wide_image = TDM_WIDE_ROWS * TDM_K * 2; // bytes of the rows of a stage
constexpr int tdm_wide_column = TDM_WIDE_ROWS * 16;       // and of a column of it

// tdm_change gives lane `lane` the low word of the one that is `apart` before it as its low one,
// or the high word of the one behind it as its high one: whichever is not its own.
TDM_INLINE void tdm_change(uint32_t &low, uint32_t &high, int lane, int apart) {
  const bool second = (lane & apart) != 0;
  const uint32_t other = (uint32_t)tdm_shuffle((int)(second ? low : high), apart);
  low = second ? other : low;
  high = second ? high : other;
}

// tdm_arrange makes an image of each 64 k of TDM_WIDE_ROWS rows: it is what a stage has. Rows
// past the count are zeros. It has columns of 16 bytes a row. The 64 bytes of a half of k are
// four chunks of four words; word w of chunk q is word q of column w. So product h of the half
// has columns 2h and 2h + 1.
//
// Four neighbouring lanes read the four chunks of a row, change words, and have a column each.
TDM_INLINE void tdm_arrange_rows(const tdm_product_args &a) {
  tdm_begin();
  const int count = *a.count, block = tdm_block_x(), row0 = tdm_block_y() * TDM_WIDE_ROWS;
  if (row0 >= count)
    return;
  const int warp = tdm_thread() / 32, at = tdm_thread() % 32 / 4, q = tdm_thread() % 4;
  constexpr int each = 2 * TDM_WIDE_ROWS / 8 / (TDM_ARRANGE_THREADS / 32); // halves of eight rows, of a warp
  tdm_quad words[each];
  TDM_UNROLL
  for (int i = 0; i < each; i++) {
    const int row = row0 + (each * warp + i) / 2 * 8 + at;
    words[i] = row < count ? tdm_load16(a.a + row * a.lda + block * TDM_K + i % 2 * 32 + q * 8) : tdm_quad{};
  }
  uint8_t *image = a.arranged + ((int64_t)tdm_block_y() * (a.k / TDM_K) + block) * tdm_wide_image;
  TDM_UNROLL
  for (int i = 0; i < each; i++) {
    uint32_t w[4] = {words[i][0], words[i][1], words[i][2], words[i][3]};
    tdm_change(w[0], w[1], q, 1);
    tdm_change(w[2], w[3], q, 1);
    tdm_change(w[0], w[2], q, 2);
    tdm_change(w[1], w[3], q, 2);
    *(tdm_quad *)(image + (4 * (i % 2) + q) * tdm_wide_column + ((each * warp + i) / 2 * 8 + at) * 16) = tdm_quad{w[0], w[1], w[2], w[3]};
  }
}

template <int then> TDM_INLINE void tdm_product_wide(const tdm_product_args &a) {
  constexpr int rows = TDM_WIDE_ROWS, stages = TDM_WIDE_STAGES, ahead = stages - 2; // blocks of K
  constexpr int warps = TDM_WIDE_THREADS / 32;
  static_assert(16 * warps == tdm_lines, "a warp has sixteen lines");
  tdm_let_next();
  const int count = *a.count;
  const tdm_tile tile = tdm_tile_of((count + rows - 1) / rows);
  const int row0 = tile.rows * rows, output0 = tile.outputs * (tdm_lines / 16) * tdm_per_tile(then);
  if (row0 >= count) {
    tdm_await_earlier();
    return;
  }
  uint8_t *shared = tdm_shared();
  tdm_mbarrier *const full = (tdm_mbarrier *)(shared + stages * TDM_WIDE_STAGE); // the rows are there
  tdm_mbarrier *const free = full + stages;                                     // all warps have read it
  const int blocks = a.k / TDM_K, length = tdm_slice_blocks(a.k);
  const int thread = tdm_thread(), warp = thread / 32, lane = thread % 32, group = lane / 4, quarter = lane % 4;
  if (thread == 0) {
    for (int i = 0; i < stages; i++) {
      tdm_mbarrier_make(full + i, 1);
      tdm_mbarrier_make(free + i, warps);
    }
  }
  tdm_barrier();

  // Eight neighbouring lanes copy a line, and then each fourth one. Of two neighbouring lines
  // the odd one has its halves changed over, so that lanes that read at once share no bank.
  const int chunk = lane % 8, line = lane / 8, output = output0 + warp * tdm_per_tile(then);
  uint8_t *const lines = shared + warp * 16 * (TDM_K * 2);
  uint8_t *const to = lines + line * (TDM_K * 2) + (chunk ^ (line & 1) << 2) * 16;
  const uint8_t *const w[2] = {
    tdm_weight_row<then, tdm_weights_bf16>(a, nullptr, output, line) + 16 * chunk,
    tdm_weight_row<then, tdm_weights_bf16>(a, nullptr, output, line + 8) + 16 * chunk,
  };
  const auto ask_lines = [&](int b) __attribute__((always_inline)) {
    if (b < blocks) {
      uint8_t *stage = to + b % stages * TDM_WIDE_STAGE;
      TDM_UNROLL
      for (int i = 0; i < 4; i++)
        tdm_copy16(stage + 4 * i * (TDM_K * 2), w[i / 2] + b * (TDM_K * 2) + i % 2 * 4 * a.ldw * 2, true);
    }
    tdm_copy_commit();
  };
  const uint8_t *const image = a.arranged + (int64_t)tile.rows * blocks * tdm_wide_image;
  const auto ask_rows = [&](int b) __attribute__((always_inline)) {
    if (thread == 0 && b < blocks) {
      const int stage = b % stages;
      if (b >= stages)
        tdm_mbarrier_wait(free + stage, (b / stages - 1) & 1);
      tdm_mbarrier_expect(full + stage, tdm_wide_image);
      tdm_bulk_copy(shared + stage * TDM_WIDE_STAGE + tdm_lines * TDM_K * 2, image + (int64_t)b * tdm_wide_image, tdm_wide_image, full + stage);
    }
  };
  for (int i = 0; i < ahead; i++)
    ask_lines(i);
  tdm_await_earlier(); // the rows are its results, and nothing else is
  for (int i = 0; i < ahead; i++)
    ask_rows(i);

  // Where the lane reads its lines: 16 bytes of each of two, eight apart.
  const uint8_t *const from = lines + group * (TDM_K * 2) + (quarter ^ (group & 1) << 2) * 16;
  const uint64_t matrix = tdm_matrix(shared + tdm_lines * TDM_K * 2, tdm_wide_column, 128);
  uint32_t pieces[2][2][4]; // of a half of the block, and of its two products
  float sum[24][4] = {}, total[1][24][4];
  TDM_UNROLL
  for (int n = 0; n < 4 * 24; n++)
    total[0][n / 4][n % 4] = -0.0f; // which changes nothing that is added to it
  for (int begin = 0; begin < blocks; begin += length) {
    const int end = tdm_least(begin + length, blocks);
    for (int b = begin; b < end; b++) {
      const int stage = b % stages;
      tdm_copy_wait<ahead - 1>();
      tdm_warp_barrier();
      tdm_mbarrier_wait(full + stage, b / stages & 1);
      TDM_UNROLL
      for (int half = 0; half < 2; half++) {
        tdm_wgmma_wait(); // nobody reads these pieces any more
        TDM_UNROLL
        for (int r = 0; r < 2; r++) {
          const tdm_quad q = tdm_shared16(from + stage * TDM_WIDE_STAGE + r * 8 * (TDM_K * 2) + (half ? (group & 1 ? -64 : 64) : 0));
          TDM_UNROLL
          for (int i = 0; i < 4; i++)
            pieces[half][i / 2][i % 2 * 2 + r] = q[i];
        }
        tdm_wgmma_begin();
        TDM_UNROLL
        for (int h = 0; h < 2; h++)
          tdm_wgmma(sum, pieces[half][h], matrix + (stage * TDM_WIDE_STAGE + (4 * half + 2 * h) * tdm_wide_column) / 16, half + h > 0 || b > begin);
        tdm_wgmma_commit();
      }
      if (b > 0 && lane == 0)
        tdm_mbarrier_arrive(free + (b - 1) % stages); // whose products are done
      ask_lines(b + ahead);
      ask_rows(b + ahead);
    }
    tdm_wgmma_end(sum);
    TDM_UNROLL
    for (int n = 0; n < 4 * 24; n++)
      total[0][n / 4][n % 4] = total[0][n / 4][n % 4] + sum[n / 4][n % 4];
  }
  tdm_finish_sums<then>(a, total, row0, count, output);
}

#define TDM_WIDE(name, then) \
  TDM_KERNEL(TDM_WIDE_THREADS, 1) tdm_product_wide_##name(const tdm_product_args a) { tdm_product_wide<then>(a); }

#endif
