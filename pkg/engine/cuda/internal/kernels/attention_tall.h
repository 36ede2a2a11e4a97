// tdm_attention_tall_*: attention of at most 64 query rows, for prompts: what
// tdm_attention_thin_* computes, bit for bit. Four warps share 32 rows. In scores a warp takes
// 16 tokens of each 64, in mixing a quarter of the dimensions; the weights go from one to the
// other through shared memory, in the layout of mma's A. So are the queries.
#ifndef TDM_ATTENTION_TALL_H
#define TDM_ATTENTION_TALL_H

#include "attention.h"

template <int size, bool fp8> struct tdm_tall {
  static constexpr int keys = TDM_TALL_KEYS(size);         // tokens of a tile
  static constexpr int tiles = TDM_SPLIT / keys, parts = keys / TDM_KEYS;
  static constexpr int groups = size / 32;                 // groups of dimensions of two products
  static constexpr int mine = size >= 64 ? size / 4 : 16;  // dimensions of a warp in mixing
  static constexpr int columns = mine / 8;
  static constexpr int blocks = 2, warp_rows = 16 * blocks; // a warp's rows are blocks of 16

  const tdm_attention_args &a;
  tdm_ring<size, fp8, TDM_TALL_STAGES, keys, TDM_TALL_THREADS> ring;
  tdm_quad *queries;     // [16 rows][group][product][lane]
  tdm_quad *weights;     // [16 rows][16 tokens of a tile][lane]
  float *largest, *added; // [row][share]
  int lane, group, quarter;
  int share, row0, own; // which of the four warps this is, their first row, and the lane's own
  float o[blocks][columns][4];
  tdm_total total; // of the lane's own row, one of its four

  TDM_METHOD explicit tdm_tall(const tdm_attention_args &a) : a(a) {
    ring.tiles = tdm_shared();
    ring.scales = ring.tiles + TDM_TALL_STAGES * ring.bytes;
    queries = (tdm_quad *)(ring.scales + TDM_SCALE_BYTES(fp8));
    weights = queries + TDM_TALL_ROWS * size / 8;
    largest = (float *)(weights + TDM_TALL_ROWS * keys / 8);
    added = largest + 4 * TDM_TALL_ROWS;
    lane = tdm_thread() % 32;
    group = lane / 4;
    quarter = lane % 4;
    share = tdm_thread() / 32 % 4;
    row0 = tdm_thread() / 128 * warp_rows;
    own = row0 + 8 * quarter + group;
  }

  // take_queries puts an item's queries where scores look for them. They are there after
  // the next barrier.
  TDM_METHOD void take_queries(const tdm_work &w) {
    for (int i = share; i < blocks * groups; i += 4) {
      const int block = i / groups, of = i % groups, row = row0 + 16 * block + group;
      const uint16_t *low = tdm_query(a, w, row, 4 * of + quarter), *high = tdm_query(a, w, row + 8, 4 * of + quarter);
      const tdm_quad q0 = low ? tdm_load16(low) : tdm_quad{}, q1 = high ? tdm_load16(high) : tdm_quad{};
      tdm_quad *to = query(block, of, 0);
      to[0] = tdm_quad{q0[0], q1[0], q0[1], q1[1]};
      to[32] = tdm_quad{q0[2], q1[2], q0[3], q1[3]};
    }
  }

  TDM_METHOD tdm_quad *query(int block, int of, int product) const {
    return queries + (((row0 / 16 + block) * groups + of) * 2 + product) * 32 + lane;
  }

  TDM_METHOD tdm_quad *weight(int block, int sixteen) const {
    return weights + ((row0 / 16 + block) * (keys / 16) + sixteen) * 32 + lane;
  }

  // token is the first of the lane's two in eight of a part of a split.
  TDM_METHOD int token(int tile, int part, int eight) const {
    return keys * tile + TDM_KEYS * part + 16 * share + 8 * eight + 2 * quarter;
  }

  // score makes the sums of a tile, of the lane's rows and tokens in the layout of mma's sums.
  template <bool whole>
  TDM_METHOD void score(float (&s)[parts][2][blocks][4], uint8_t *tile, int first_part, int last_part) const {
    TDM_UNROLL
    for (int of = 0; of < groups; of++) {
      tdm_quad q[blocks][2];
      TDM_UNROLL
      for (int b = 0; b < blocks; b++) {
        q[b][0] = *query(b, of, 0);
        q[b][1] = *query(b, of, 1);
      }
      TDM_UNROLL
      for (int part = 0; part < parts; part++) {
        if (!whole && (part < first_part || part > last_part))
          continue;
        tdm_quad k[2];
        TDM_UNROLL
        for (int eight = 0; eight < 2; eight++)
          k[eight] = tdm_eight<size, fp8>(tile, TDM_KEYS * part + 16 * share + 8 * eight + group, 4 * of + quarter);
        TDM_UNROLL
        for (int product = 0; product < 2; product++) {
          TDM_UNROLL
          for (int eight = 0; eight < 2; eight++) {
            TDM_UNROLL
            for (int b = 0; b < blocks; b++)
              tdm_mma(s[part][eight][b], q[b][product][0], q[b][product][1], q[b][product][2], q[b][product][3],
                      k[eight][2 * product], k[eight][2 * product + 1]);
          }
        }
      }
    }
  }

  // split takes what the item sees of a split, `whole` if each row sees all of it.
  template <bool whole> TDM_METHOD void split(const tdm_work &w, int split) {
    const tdm_seen all = whole ? tdm_seen{0, TDM_SPLIT} : tdm_split_seen(w, split);
    const int first = all.begin / TDM_KEYS, last = (all.end - 1) / TDM_KEYS; // parts of the split
    tdm_seen seen[blocks][2];
    float m[blocks][2];
    TDM_UNROLL
    for (int b = 0; b < blocks; b++) {
      TDM_UNROLL
      for (int half = 0; half < 2; half++) {
        seen[b][half] = whole ? all : tdm_row_seen(a, w, row0 + 16 * b + 8 * half + group, split);
        m[b][half] = -__builtin_inff();
      }
    }

    // Scores, not scaled yet.
    float s[tiles][parts][2][blocks][4] = {};
    TDM_UNROLL
    for (int tile = 0; tile < tiles; tile++) {
      if (!whole && (tile < first / parts || tile > last / parts))
        continue;
      uint8_t *at = ring.take(a, w);
      score<whole>(s[tile], at, first - tile * parts, last - tile * parts);
      TDM_UNROLL
      for (int part = 0; part < parts; part++) {
        TDM_UNROLL
        for (int eight = 0; eight < 2; eight++) {
          TDM_UNROLL
          for (int b = 0; b < blocks; b++) {
            float(&sum)[4] = s[tile][part][eight][b];
            if (fp8)
              tdm_scale_sums(sum, tdm_scales::of(ring.key_scales(split), token(tile, part, eight)));
            TDM_UNROLL
            for (int c = 0; c < 4; c++)
              m[b][c / 2] = tdm_larger_sum<whole>(m[b][c / 2], sum[c], token(tile, part, eight) + c % 2, seen[b][c / 2]);
          }
        }
      }
    }
    TDM_UNROLL
    for (int b = 0; b < blocks; b++) {
      TDM_UNROLL
      for (int half = 0; half < 2; half++) {
        m[b][half] = tdm_larger(m[b][half], tdm_shuffle(m[b][half], 1));
        m[b][half] = tdm_larger(m[b][half], tdm_shuffle(m[b][half], 2));
        if (quarter == 0)
          largest[4 * (row0 + 16 * b + 8 * half + group) + share] = m[b][half];
      }
    }
    tdm_barrier();
    ring.ask(a, w); // where the last keys were

    // Weights, and this warp's part of their sums.
    tdm_quad p[tiles][parts][blocks] = {};
    TDM_UNROLL
    for (int b = 0; b < blocks; b++) {
      TDM_UNROLL
      for (int half = 0; half < 2; half++) {
        const int row = row0 + 16 * b + 8 * half + group;
        const float highest = score_of(row);
        float l = 0;
        TDM_UNROLL
        for (int tile = 0; tile < tiles; tile++) {
          TDM_UNROLL
          for (int part = 0; part < parts; part++) {
            if (!whole && (tile * parts + part < first || tile * parts + part > last))
              continue;
            TDM_UNROLL
            for (int eight = 0; eight < 2; eight++) {
              const float(&sum)[4] = s[tile][part][eight][b];
              const int at = token(tile, part, eight);
              uint32_t pair = tdm_weigh<whole>(sum[2 * half], sum[2 * half + 1], a.scale, highest, at, seen[b][half], l);
              if (fp8)
                pair = tdm_weigh_codes<whole>(pair, tdm_scales::of(ring.value_scales(split), at), at, seen[b][half]);
              p[tile][part][b][2 * eight + half] = pair;
            }
          }
        }
        l = l + tdm_shuffle(l, 1);
        l = l + tdm_shuffle(l, 2);
        if (quarter == 0)
          added[4 * row + share] = l;
      }
    }

    // Mixing.
    float mixed[blocks][columns][4] = {};
    const bool mixes = share * mine < size;
    TDM_UNROLL
    for (int tile = 0; tile < tiles; tile++) {
      if (!whole && (tile < first / parts || tile > last / parts))
        continue;
      if (tile > (whole ? 0 : first / parts)) {
        tdm_barrier(); // all have left the tile before, and its weights
        ring.ask(a, w);
      }
      TDM_UNROLL
      for (int part = 0; part < parts; part++) {
        TDM_UNROLL
        for (int b = 0; b < blocks; b++)
          *weight(b, 4 * part + share) = p[tile][part][b];
      }
      uint8_t *values = ring.template take_asked<1>();
      if (!mixes)
        continue;
      const int from = whole ? 0 : tdm_most(all.begin - keys * tile, 0) / 16;
      const int to = whole ? keys / 16 : (tdm_least(all.end - keys * tile, keys) + 15) / 16;
      if (whole) {
        TDM_UNROLL
        for (int sixteen = 0; sixteen < keys / 16; sixteen++)
          mix(mixed, values, sixteen);
      } else {
        for (int sixteen = from; sixteen < to; sixteen++)
          mix(mixed, values, sixteen);
      }
    }
    tdm_factors joined = {1, 0};
    const tdm_seen seen_own = whole ? all : tdm_row_seen(a, w, own, split);
    if (whole || seen_own.end > seen_own.begin) {
      const tdm_floats l = *(const tdm_floats *)(added + 4 * own);
      joined = tdm_join_sums(total, {score_of(own), ((l[0] + l[1]) + l[2]) + l[3]});
    }
    TDM_UNROLL
    for (int b = 0; b < blocks; b++) {
      TDM_UNROLL
      for (int half = 0; half < 2; half++) {
        const tdm_factors f = {tdm_of_four(joined.old, 2 * b + half), tdm_of_four(joined.add, 2 * b + half)};
        if (!whole && seen[b][half].end <= seen[b][half].begin)
          continue;
        TDM_UNROLL
        for (int j = 0; j < columns; j++) {
          TDM_UNROLL
          for (int c = 2 * half; c < 2 * half + 2; c++)
            o[b][j][c] = tdm_join_result(o[b][j][c], mixed[b][j][c], f);
        }
      }
    }
  }

  // score_of is a row's largest score of the split that all warps have looked at.
  TDM_METHOD float score_of(int row) const {
    const tdm_floats sums = *(const tdm_floats *)(largest + 4 * row);
    return tdm_larger(tdm_larger(sums[0], sums[1]), tdm_larger(sums[2], sums[3])) * a.scale;
  }

  TDM_METHOD void mix(float (&mixed)[blocks][columns][4], uint8_t *values, int sixteen) const {
    const tdm_quad p[blocks] = {*weight(0, sixteen), *weight(1, sixteen)};
    tdm_mix<size, fp8>(mixed, p, values, 16 * sixteen, share * columns);
  }

  TDM_METHOD void item(const tdm_work &w) {
    ring.begin(a, w);
    take_queries(w);
    TDM_UNROLL
    for (int b = 0; b < blocks; b++) {
      TDM_UNROLL
      for (int j = 0; j < columns; j++) {
        TDM_UNROLL
        for (int c = 0; c < 4; c++)
          o[b][j][c] = 0;
      }
    }
    total = {0, 0};
    for (int n = w.item.first; n < w.item.last; n++) {
      const tdm_seen all = tdm_split_seen(w, n);
      // The first row sees the least of what comes last, and the last row of what comes first.
      if (w.item.position + 1 >= (n + 1) * TDM_SPLIT && (a.window == 0 || w.end - a.window <= n * TDM_SPLIT))
        split<true>(w, n);
      else if (all.end > all.begin)
        split<false>(w, n);
    }
    if (share * mine < size) {
      TDM_UNROLL
      for (int b = 0; b < blocks; b++) {
        tdm_total totals[2];
        TDM_UNROLL
        for (int half = 0; half < 2; half++)
          totals[half] = {tdm_of_four(total.m, 2 * b + half), tdm_of_four(total.l, 2 * b + half)};
        tdm_write_rows<fp8>(a, w, row0 + 16 * b, share * mine, o[b], totals);
      }
    }
    ring.leave();
  }
};

template <int size, bool fp8> TDM_INLINE void tdm_attention_tall(const tdm_attention_args &a) {
  tdm_begin();
  tdm_tall<size, fp8> tall(a);
  for (int n = tdm_block_x(), count = *a.count; n < count; n += tdm_grid_x())
    tall.item(tdm_work::of(a, n, tdm_block_y()));
}

#define TDM_TALL(size) \
  TDM_KERNEL(TDM_TALL_THREADS, (size) <= 128 ? 2 : 1) tdm_attention_tall_##size(const tdm_attention_args a) { tdm_attention_tall<size, false>(a); }
#define TDM_TALL_FP8(size) \
  TDM_KERNEL(TDM_TALL_THREADS, (size) <= 128 ? 2 : 1) tdm_attention_tall_##size##_fp8(const tdm_attention_args a) { tdm_attention_tall<size, true>(a); }

#endif
