// tdm_attention_tall_*: attention of at most 64 query rows, for prompts. A warp has 16
// rows, of which it computes everything itself: what tdm_attention_thin_* computes, bit
// for bit.
#ifndef TDM_ATTENTION_TALL_H
#define TDM_ATTENTION_TALL_H

#include "attention.h"

template <int size> struct tdm_tall {
  static constexpr int stages = TDM_TALL_STAGES(size);
  static constexpr int groups = size / 32;   // groups of dimensions of two products
  static constexpr int columns = size / 8;   // of eight dimensions
  // Whether the results so far stay in registers, or in shared memory.
  static constexpr bool kept = TDM_TALL_KEPT(size);
};

// tdm_copy_queries begins to copy an item's queries, a group by itself.
template <int size> TDM_INLINE void tdm_copy_queries(const tdm_attention_args &a, const tdm_work &w, uint8_t *to) {
  for (int i = tdm_thread(); i < TDM_TALL_ROWS * (size / 8); i += TDM_ATTENTION_THREADS) {
    const int row = i / (size / 8), chunk = i % (size / 8);
    const uint16_t *from = tdm_query(a, w, row, chunk);
    tdm_copy16(tdm_chunk<2 * size>(to, row, chunk), from ? from : a.q, from);
  }
  tdm_copy_commit();
}

// tdm_taken is a tile as bf16: of one of codes all warps together make that, once for all.
// They have left what it takes the place of before they took the tile.
template <int size, bool fp8> TDM_INLINE uint8_t *tdm_taken(uint8_t *tile, uint8_t *wide) {
  if (!fp8)
    return tile;
  TDM_UNROLL
  for (int i = 0; i < TDM_KEYS * size / 8 / TDM_ATTENTION_THREADS; i++) {
    const int at = tdm_thread() + i * TDM_ATTENTION_THREADS, token = at / (size / 8), eight = at % (size / 8);
    *(tdm_quad *)tdm_chunk<2 * size>(wide, token, eight) = tdm_eight<size, fp8>(tile, token, eight);
  }
  tdm_barrier();
  return wide;
}

template <int size, bool fp8> TDM_INLINE void tdm_attention_tall(const tdm_attention_args &a) {
  tdm_begin();
  using tall = tdm_tall<size>;
  const int count = *a.count, warp = tdm_thread() / 32, lane = tdm_thread() % 32;
  const int group = lane / 4, quarter = lane % 4;
  const int row0 = TDM_THIN_ROWS * warp;

  tdm_ring<size, fp8, tall::stages> ring;
  ring.tiles = tdm_shared();
  ring.scales = ring.tiles + tall::stages * ring.bytes;
  uint8_t *wide = ring.scales + TDM_SCALE_BYTES(fp8); // fp8: the tile in use, as bf16
  uint8_t *queries = wide + (fp8 ? TDM_TILE_BYTES(size, false) : 0);
  float *results = (float *)(queries + TDM_TALL_ROWS * size * 2) + warp * tall::columns * 4 * 32 + lane;

  const uint32_t zero = tdm_zero(count); // as in products: queries go where mma wants them, once
  for (int n = tdm_block_x(); n < count; n += tdm_grid_x()) {
    const tdm_work w = tdm_work::of(a, n, tdm_block_y());
    tdm_copy_queries<size>(a, w, queries);
    ring.begin(a, w);
    float o[tall::kept ? tall::columns : 1][4] = {};
    if (!tall::kept) {
      for (int i = 0; i < tall::columns * 4; i++)
        results[32 * i] = 0;
    }
    tdm_total total[2] = {};

    for (int split = w.item.first; split < w.item.last; split++) {
      const tdm_seen all = tdm_split_seen(w, split);
      if (all.end <= all.begin)
        continue;
      const tdm_seen seen[2] = {tdm_row_seen(a, w, row0 + group, split), tdm_row_seen(a, w, row0 + group + 8, split)};
      const int first_tile = all.begin / TDM_KEYS, last_tile = (all.end - 1) / TDM_KEYS;
      // What some row of the warp sees: the first row's begin to the last row's end.
      const int last_row = tdm_least(row0 + TDM_THIN_ROWS, w.rows) - 1;
      const tdm_seen warps = {tdm_row_seen(a, w, row0, split).begin, last_row < row0 ? 0 : tdm_row_seen(a, w, last_row, split).end};

      // Scores: a lane has rows group and group + 8, and tokens 8 j + 2 quarter and the
      // one after.
      float s[TDM_SPLIT / 8][4];
      float m[2] = {-__builtin_inff(), -__builtin_inff()};
      TDM_UNROLL
      for (int tile = 0; tile < 4; tile++) {
        if (tile >= first_tile && tile <= last_tile) {
          uint8_t *keys = tdm_taken<size, fp8>(ring.take(a, w), wide);
          if (TDM_KEYS * tile < warps.end && TDM_KEYS * (tile + 1) > warps.begin) {
            float sum[8][4] = {};
            TDM_UNROLL
            for (int i = 0; i < tall::groups; i++) {
              const tdm_quad q0 = tdm_shared16(tdm_chunk<2 * size>(queries, row0 + group, 4 * i + quarter)) ^ zero;
              const tdm_quad q1 = tdm_shared16(tdm_chunk<2 * size>(queries, row0 + group + 8, 4 * i + quarter)) ^ zero;
              TDM_UNROLL
              for (int j = 0; j < 8; j++)
                tdm_mma2(sum[j], q0, q1, tdm_shared16(tdm_chunk<2 * size>(keys, 8 * j + group, 4 * i + quarter)));
            }
            TDM_UNROLL
            for (int j = 0; j < 8; j++) {
              if (fp8)
                tdm_scale_sums(sum[j], tdm_scales::of(ring.key_scales(split), TDM_KEYS * tile + 8 * j + 2 * quarter));
              TDM_UNROLL
              for (int c = 0; c < 4; c++) {
                const float score = tdm_score(sum[j][c], a.scale, TDM_KEYS * tile + 8 * j + 2 * quarter + c % 2, seen[c / 2]);
                s[8 * tile + j][c] = score;
                m[c / 2] = tdm_larger(m[c / 2], score);
              }
            }
            continue;
          }
        }
        TDM_UNROLL
        for (int j = 0; j < 8; j++) {
          TDM_UNROLL
          for (int c = 0; c < 4; c++)
            s[8 * tile + j][c] = 0; // not seen
        }
      }

      // Weights, in the layout of mma's A. Their sums are four, as the thin kernels' warps
      // have them: of the tokens 16 i to 16 i + 15 of each tile.
      uint32_t p[TDM_SPLIT / 8][2];
      tdm_total here[2];
      TDM_UNROLL
      for (int half = 0; half < 2; half++) {
        m[half] = tdm_larger(m[half], tdm_shuffle(m[half], 1));
        m[half] = tdm_larger(m[half], tdm_shuffle(m[half], 2));
        float l[4] = {};
        TDM_UNROLL
        for (int j = 0; j < TDM_SPLIT / 8; j++) {
          const int token = 8 * j + 2 * quarter;
          p[j][half] = tdm_weigh(s[j][2 * half], s[j][2 * half + 1], m[half], token, seen[half], l[j / 2 % 4]);
          if (fp8)
            p[j][half] = tdm_weigh_codes(p[j][half], tdm_scales::of(ring.value_scales(split), token), token, seen[half]);
        }
        TDM_UNROLL
        for (int i = 0; i < 4; i++) {
          l[i] = l[i] + tdm_shuffle(l[i], 1);
          l[i] = l[i] + tdm_shuffle(l[i], 2);
        }
        here[half] = {m[half], ((l[0] + l[1]) + l[2]) + l[3]};
      }

      // Mixing.
      float mixed[tall::columns][4] = {};
      TDM_UNROLL
      for (int tile = 0; tile < 4; tile++) {
        if (tile < first_tile || tile > last_tile)
          continue;
        uint8_t *values = tdm_taken<size, fp8>(ring.take(a, w), wide);
        TDM_UNROLL
        for (int step = 0; step < TDM_KEYS / 16; step++) {
          const int token = TDM_KEYS * tile + 16 * step, j0 = token / 8;
          if (token >= warps.end || token + 16 <= warps.begin)
            continue;
          TDM_UNROLL
          for (int j = 0; j < tall::columns; j += 2) {
            uint32_t v[4];
            tdm_transposed(v, tdm_chunk<2 * size>(values, 16 * step + lane % 16, j + lane / 16));
            tdm_mma(mixed[j], p[j0][0], p[j0][1], p[j0 + 1][0], p[j0 + 1][1], v[0], v[1]);
            tdm_mma(mixed[j + 1], p[j0][0], p[j0][1], p[j0 + 1][0], p[j0 + 1][1], v[2], v[3]);
          }
        }
      }
      TDM_UNROLL
      for (int half = 0; half < 2; half++) {
        if (seen[half].end <= seen[half].begin)
          continue;
        const tdm_factors f = tdm_join_sums(total[half], here[half]);
        TDM_UNROLL
        for (int j = 0; j < tall::columns; j++) {
          TDM_UNROLL
          for (int c = 2 * half; c < 2 * half + 2; c++) {
            if (tall::kept)
              o[j][c] = tdm_join_result(o[j][c], mixed[j][c], f);
            else
              results[32 * (4 * j + c)] = tdm_join_result(results[32 * (4 * j + c)], mixed[j][c], f);
          }
        }
      }
    }
    if (tall::kept) {
      tdm_write_rows<false>(a, w, row0, 0, o, total);
    } else {
      for (int j = 0; j < tall::columns; j++) {
        const float some[1][4] = {{results[128 * j], results[128 * j + 32], results[128 * j + 64], results[128 * j + 96]}};
        tdm_write_rows<false>(a, w, row0, 8 * j, some, total);
      }
    }
    ring.leave();
  }
}

#define TDM_TALL(size) \
  TDM_KERNEL(TDM_ATTENTION_THREADS, (size) <= 128 ? 2 : 1) tdm_attention_tall_##size(const tdm_attention_args a) { tdm_attention_tall<size, false>(a); }
#define TDM_TALL_FP8(size) \
  TDM_KERNEL(TDM_ATTENTION_THREADS, (size) <= 128 ? 2 : 1) tdm_attention_tall_##size##_fp8(const tdm_attention_args a) { tdm_attention_tall<size, true>(a); }

#endif
