// tdm_attention_thin_*: attention of at most 16 query rows, for decode. In scores a warp
// takes 16 tokens of each tile, in mixing a quarter of the dimensions; the weights go from
// one to the other through shared memory.
#ifndef TDM_ATTENTION_THIN_H
#define TDM_ATTENTION_THIN_H

#include "attention.h"

template <int size, bool fp8> TDM_INLINE void tdm_attention_thin(const tdm_attention_args &a) {
  tdm_begin();
  constexpr int stages = TDM_THIN_STAGES, groups = size / 32;          // groups of dimensions of two products
  constexpr int mine = size >= 64 ? size / 4 : 16;       // dimensions of a warp in mixing
  constexpr int columns = mine / 8;
  constexpr int line = TDM_WEIGHTS_LINE;                 // bytes of a row of weights
  const int count = *a.count, warp = tdm_thread() / 32, lane = tdm_thread() % 32;
  const int group = lane / 4, quarter = lane % 4;

  tdm_ring<size, fp8, stages, TDM_KEYS, TDM_ATTENTION_THREADS> ring;
  ring.tiles = tdm_shared();
  ring.scales = ring.tiles + stages * ring.bytes;
  uint8_t *weights = ring.scales + TDM_SCALE_BYTES(fp8);                   // [row][token], bf16
  float *largest = (float *)(weights + TDM_THIN_ROWS * line), *added = largest + 4 * TDM_THIN_ROWS; // [warp][row]

  const uint32_t zero = tdm_zero(count); // as in products: queries go where mma wants them, once
  // Tiles are asked for across items: `ahead` is the one of the next tile.
  int n_ahead = tdm_block_x(), turn = 0;
  tdm_work ahead = {};
  if (n_ahead < count) {
    ahead = tdm_work::of(a, n_ahead, tdm_block_y());
    ring.begin_item(ahead);
  }
  const auto ask = [&]() __attribute__((always_inline)) {
    while (ring.asked(ahead) && n_ahead + tdm_grid_x() < count) {
      n_ahead += tdm_grid_x();
      ahead = tdm_work::of(a, n_ahead, tdm_block_y());
      ring.begin_item(ahead);
    }
    ring.ask(a, ahead);
  };
  const auto take = [&]() __attribute__((always_inline)) {
    uint8_t *tile = ring.template take_asked<stages - 2>();
    ask();
    return tile;
  };
  for (int i = 0; i < stages - 1; i++)
    ask();
  for (int n = tdm_block_x(); n < count; n += tdm_grid_x()) {
    const tdm_work w = tdm_work::of(a, n, tdm_block_y());
    tdm_quad q[groups][2];
    for (int i = 0; i < groups; i++) {
      for (int half = 0; half < 2; half++) {
        const uint16_t *at = tdm_query(a, w, group + 8 * half, 4 * i + quarter);
        q[i][half] = (at ? tdm_load16(at) : tdm_quad{}) ^ zero;
      }
    }
    float o[columns][4] = {};
    tdm_total total[2] = {};

    for (int split = w.item.first; split < w.item.last; split++) {
      const tdm_seen all = tdm_split_seen(w, split);
      if (all.end <= all.begin)
        continue;
      const tdm_seen seen[2] = {tdm_row_seen(a, w, group, split), tdm_row_seen(a, w, group + 8, split)};
      const int first_tile = all.begin / TDM_KEYS, last_tile = (all.end - 1) / TDM_KEYS;

      // Scores: a lane has rows group and group + 8, and of each tile the tokens
      // 16 warp + 8 h + 2 quarter and the one after, h being 0 and 1.
      float s[4][2][4];
      float m[2] = {-__builtin_inff(), -__builtin_inff()};
      TDM_UNROLL
      for (int tile = 0; tile < 4; tile++) {
        if (tile < first_tile || tile > last_tile)
          continue;
        uint8_t *keys = take();
        TDM_UNROLL
        for (int h = 0; h < 2; h++) {
          float sum[4] = {};
          TDM_UNROLL
          for (int i = 0; i < groups; i++)
            tdm_mma2(sum, q[i][0], q[i][1], tdm_eight<size, fp8>(keys, 16 * warp + 8 * h + group, 4 * i + quarter));
          const int token = TDM_KEYS * tile + 16 * warp + 8 * h + 2 * quarter;
          if (fp8)
            tdm_scale_sums(sum, tdm_scales::of(ring.key_scales(turn), token));
          TDM_UNROLL
          for (int c = 0; c < 4; c++) {
            s[tile][h][c] = sum[c];
            m[c / 2] = tdm_larger_sum<false>(m[c / 2], sum[c], token + c % 2, seen[c / 2]);
          }
        }
      }
      TDM_UNROLL
      for (int half = 0; half < 2; half++) {
        m[half] = tdm_larger(m[half], tdm_shuffle(m[half], 1));
        m[half] = tdm_larger(m[half], tdm_shuffle(m[half], 2));
        if (quarter == 0)
          largest[warp * TDM_THIN_ROWS + group + 8 * half] = m[half];
      }
      tdm_barrier();

      // Weights, and this warp's part of their sum.
      TDM_UNROLL
      for (int half = 0; half < 2; half++) {
        const int row = group + 8 * half;
        if (8 * half >= w.rows)
          continue; // nobody looks at what becomes of the rows
        for (int i = 0; i < 4; i++)
          m[half] = tdm_larger(m[half], largest[i * TDM_THIN_ROWS + row]);
        m[half] = m[half] * a.scale;
        float l = 0;
        TDM_UNROLL
        for (int tile = 0; tile < 4; tile++) {
          if (tile < first_tile || tile > last_tile)
            continue;
          TDM_UNROLL
          for (int h = 0; h < 2; h++) {
            const int token = TDM_KEYS * tile + 16 * warp + 8 * h + 2 * quarter;
            uint32_t pair = tdm_weigh<false>(s[tile][h][2 * half], s[tile][h][2 * half + 1], a.scale, m[half], token, seen[half], l);
            if (fp8)
              pair = tdm_weigh_codes<false>(pair, tdm_scales::of(ring.value_scales(turn), token), token, seen[half]);
            *(uint32_t *)(weights + row * line + 2 * token) = pair;
          }
        }
        l = l + tdm_shuffle(l, 1);
        l = l + tdm_shuffle(l, 2);
        if (quarter == 0)
          added[warp * TDM_THIN_ROWS + row] = l;
      }

      // Mixing. The first take brings the weights of all warps as well.
      float mixed[1][columns][4] = {};
      for (int tile = first_tile; tile <= last_tile; tile++) {
        uint8_t *values = take();
        if (warp * mine >= size)
          continue;
        const int from = tdm_most(all.begin - TDM_KEYS * tile, 0) / 16;
        const int to = (tdm_least(all.end - TDM_KEYS * tile, TDM_KEYS) + 15) / 16;
        for (int step = from; step < to; step++) {
          const uint8_t *p = weights + group * line + 2 * (TDM_KEYS * tile + 16 * step + 2 * quarter);
          const tdm_quad weighed[1] = {{*(const uint32_t *)p, *(const uint32_t *)(p + 8 * line), *(const uint32_t *)(p + 16), *(const uint32_t *)(p + 8 * line + 16)}};
          tdm_mix<size, fp8>(mixed, weighed, values, 16 * step, warp * columns);
        }
      }
      TDM_UNROLL
      for (int half = 0; half < 2; half++) {
        if (seen[half].end <= seen[half].begin)
          continue;
        const float *l = added + group + 8 * half;
        const tdm_total here = {m[half], ((l[0] + l[TDM_THIN_ROWS]) + l[2 * TDM_THIN_ROWS]) + l[3 * TDM_THIN_ROWS]};
        const tdm_factors f = tdm_join_sums(total[half], here);
        TDM_UNROLL
        for (int j = 0; j < columns; j++) {
          o[j][2 * half] = tdm_join_result(o[j][2 * half], mixed[0][j][2 * half], f);
          o[j][2 * half + 1] = tdm_join_result(o[j][2 * half + 1], mixed[0][j][2 * half + 1], f);
        }
      }
      turn++;
    }
    if (warp * mine < size)
      tdm_write_rows<fp8>(a, w, 0, warp * mine, o, total);
  }
  tdm_copy_wait<0>();
}

#define TDM_THIN(size) \
  TDM_KERNEL(TDM_ATTENTION_THREADS, (size) <= 128 ? 3 : 1) tdm_attention_thin_##size(const tdm_attention_args a) { tdm_attention_thin<size, false>(a); }
#define TDM_THIN_FP8(size) \
  TDM_KERNEL(TDM_ATTENTION_THREADS, (size) <= 128 ? 3 : 1) tdm_attention_thin_##size##_fp8(const tdm_attention_args a) { tdm_attention_thin<size, true>(a); }

#endif
