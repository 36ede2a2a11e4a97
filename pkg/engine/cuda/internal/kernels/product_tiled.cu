// tdm_product_tiled_*: products of many rows, at the speed of the tensor cores. A block
// has 128 lines of weights (of SwiGLU 64 of w and 64 of up) and 128 rows; both come in
// stages of 64 k by asynchronous copies. Each sum is the chain that a thin kernel makes of
// it: slices from zero, added in order.
#include "product.h"

constexpr int tdm_lines = 128, tdm_stage = (tdm_lines + TDM_TILED_ROWS) * TDM_K * 2;

// tdm_place is where 16 bytes of a line are in a stage. Odd lines have their halves
// changed over, so that the two lines that a quarter of a warp reads share no bank.
TDM_INLINE uint8_t *tdm_place(uint8_t *lines, int line, int chunk) {
  return lines + line * (TDM_K * 2) + (chunk ^ (line & 1) << 2) * 16;
}

template <int then> TDM_INLINE void tdm_product_tiled(const tdm_product_args &a) {
  constexpr int per_tile = then == TDM_SWIGLU ? 8 : 16; // outputs of 16 lines
  const int count = *a.count, row0 = tdm_block_y() * TDM_TILED_ROWS;
  if (row0 >= count)
    return;
  const int thread = tdm_thread(), warp = thread / 32, lane = thread % 32;
  const int group = lane / 4, quarter = lane % 4;
  const int output0 = tdm_block_x() * (tdm_lines / 16 * per_tile);
  uint8_t *shared = tdm_shared();

  // A thread copies a chunk of every 32nd line of both.
  const int chunk = thread % 8, line0 = thread / 8;
  const uint16_t *w[4], *x[4];
  TDM_UNROLL
  for (int i = 0; i < 4; i++) {
    const int line = line0 + 32 * i;
    w[i] = tdm_weight_row<then>(a, output0 + line / 16 * per_tile, line % 16) + 8 * chunk;
    x[i] = a.a + (int64_t)tdm_least(row0 + line, count - 1) * a.lda + 8 * chunk;
  }
  const int blocks = a.k / TDM_K, length = tdm_slice_blocks(a.k);
  const auto ask = [&](int b) __attribute__((always_inline)) {
    if (b < blocks) {
      uint8_t *stage = shared + b % TDM_TILED_STAGES * tdm_stage;
      TDM_UNROLL
      for (int i = 0; i < 4; i++) {
        tdm_copy16(tdm_place(stage, line0 + 32 * i, chunk), w[i] + (int64_t)b * TDM_K, true);
        tdm_copy16(tdm_place(stage, tdm_lines + line0 + 32 * i, chunk), x[i] + (int64_t)b * TDM_K, true);
      }
    }
    tdm_copy_commit();
  };

  // A warp has 64 lines and 32 rows.
  const int line1 = warp % 2 * 64, column1 = tdm_lines + warp / 2 * 32;
  float sum[4][4][4] = {}, total[4][4][4] = {};
  for (int b = 0; b < TDM_TILED_STAGES - 1; b++)
    ask(b);
  int left = length; // blocks that the slice still has
  bool first = true;
  for (int b = 0; b < blocks; b++) {
    tdm_copy_wait<TDM_TILED_STAGES - 2>();
    tdm_barrier();
    ask(b + TDM_TILED_STAGES - 1);
    uint8_t *stage = shared + b % TDM_TILED_STAGES * tdm_stage;
    TDM_UNROLL
    for (int half = 0; half < 2; half++) {
      tdm_quad p[4][2];
      TDM_UNROLL
      for (int i = 0; i < 4; i++) {
        p[i][0] = tdm_shared16(tdm_place(stage, line1 + 16 * i + group, 4 * half + quarter));
        p[i][1] = tdm_shared16(tdm_place(stage, line1 + 16 * i + group + 8, 4 * half + quarter));
      }
      TDM_UNROLL
      for (int j = 0; j < 4; j++) {
        const tdm_quad q = tdm_shared16(tdm_place(stage, column1 + 8 * j + group, 4 * half + quarter));
        TDM_UNROLL
        for (int i = 0; i < 4; i++)
          tdm_mma2(sum[i][j], p[i][0], p[i][1], q);
      }
    }
    if (--left == 0 || b + 1 == blocks) {
      left = length;
      TDM_UNROLL
      for (int n = 0; n < 64; n++) {
        float &s = sum[n / 16][n / 4 % 4][n % 4], &t = total[n / 16][n / 4 % 4][n % 4];
        t = first ? s : t + s;
        s = 0;
      }
      first = false;
    }
  }

  TDM_UNROLL
  for (int i = 0; i < 4; i++) {
    const int output = output0 + (line1 / 16 + i) * per_tile + group;
    TDM_UNROLL
    for (int j = 0; j < 4; j++) {
      TDM_UNROLL
      for (int c = 0; c < 2; c++) {
        const int row = row0 + warp / 2 * 32 + 8 * j + 2 * quarter + c;
        if (row >= count)
          continue;
        tdm_finish<then>(a, row, output, total[i][j][c], total[i][j][c + 2]);
        if (then != TDM_SWIGLU)
          tdm_finish<then>(a, row, output + 8, total[i][j][c + 2], 0);
      }
    }
  }
}

#define TDM_TILED(name, then) \
  TDM_KERNEL(TDM_PRODUCT_THREADS, 1) tdm_product_tiled_##name(const tdm_product_args a) { tdm_product_tiled<then>(a); }

TDM_TILED(store, TDM_STORE)
TDM_TILED(add, TDM_ADD)
TDM_TILED(swiglu, TDM_SWIGLU)
