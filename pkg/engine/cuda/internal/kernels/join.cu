// tdm_join: joins the results of splits that different blocks computed. A warp has 32
// dimensions of a row, one a lane; of 32 splits at a time its lanes have a split each, whose
// factors they compute side by side. What is left to do in order is a product, a product and
// a sum for each split.
#include "join.h"

constexpr int tdm_join_splits = 32;                       // at a time
constexpr int tdm_join_parts = TDM_JOIN_BLOCKS;           // blocks that share an item
constexpr int tdm_join_warps = TDM_ATTENTION_THREADS / 32; // of a block

// tdm_largest_so_far is the largest score of some splits; of none, seen is 0.
struct tdm_largest_so_far {
  float m;
  int seen;
};

// tdm_then is the largest score of splits and of those behind them: of equal ones the first.
TDM_INLINE tdm_largest_so_far tdm_then(tdm_largest_so_far x, tdm_largest_so_far y) {
  if (!x.seen || !y.seen)
    return x.seen ? x : y;
  return {y.m > x.m ? y.m : x.m, 1};
}

// tdm_split_factors is the factors of the lane's split, as tdm_join_largest gives them one
// split after the other. before is of the splits before the first lane's, then of all.
TDM_INLINE tdm_factors tdm_split_factors(tdm_largest_so_far &before, tdm_largest_so_far mine) {
  tdm_largest_so_far earlier = {0, 0}, all = mine; // of the lanes that met: those before this one, and all
  TDM_UNROLL
  for (int apart = 1; apart < 32; apart *= 2) {
    const tdm_largest_so_far other = {tdm_shuffle(all.m, apart), tdm_shuffle(all.seen, apart)};
    if (tdm_thread() & apart) {
      earlier = tdm_then(other, earlier);
      all = tdm_then(other, all);
    } else {
      all = tdm_then(all, other);
    }
  }
  earlier = tdm_then(before, earlier);
  before = tdm_then(before, all);
  return tdm_join_largest(earlier.m, earlier.seen, mine.m);
}

// tdm_some is 32 splits of a row, as a lane has them: of one the largest score and the sum of
// weights, of all the results of a dimension. Past the last split there are that one's, or
// what was there before.
struct tdm_some {
  tdm_total split;
  float results[tdm_join_splits];

  TDM_METHOD void read(const float *sums, const float *from, int64_t stride, int size, int first, int splits) {
    const float *at = sums + tdm_least(first + tdm_thread() % 32, splits - 1) * stride * 2;
    split = {at[0], at[1]};
    TDM_UNROLL
    for (int eight = 0; eight < tdm_join_splits; eight += 8) {
      if (first + eight >= splits)
        break;
      TDM_UNROLL
      for (int s = eight; s < eight + 8; s++)
        results[s] = from[tdm_least(first + s, splits - 1) * stride * size];
    }
  }
};

TDM_KERNEL(TDM_ATTENTION_THREADS, 4) tdm_join(const tdm_join_args a) {
  tdm_begin();
  const int count = *a.count, kv = tdm_block_y(), group = a.heads / a.kv_heads;
  const int warp = tdm_thread() / 32, lane = tdm_thread() % 32, across = (a.size + 31) / 32;
  for (int n = tdm_block_x(); n < count * tdm_join_parts; n += tdm_grid_x()) {
    const tdm_joint item = a.joins[n / tdm_join_parts];
    const int64_t stride = (int64_t)item.stride * a.kv_heads * TDM_THIN_ROWS;
    for (int i = n % tdm_join_parts * tdm_join_warps + warp; i < item.tokens * group * across; i += tdm_join_parts * tdm_join_warps) {
      const int row = i / across, dimension = i % across * 32 + lane;
      const int64_t line = ((item.slot + row / TDM_THIN_ROWS) * (int64_t)a.kv_heads + kv) * TDM_THIN_ROWS + row % TDM_THIN_ROWS;
      const float *sums = a.sums + line * 2, *results = a.results + line * a.size + tdm_least(dimension, a.size - 1);
      tdm_largest_so_far before = {0, 0};
      float l = 0, o = 0;
      tdm_some next = {};
      next.read(sums, results, stride, a.size, 0, item.splits);
      for (int first = 0; first < item.splits; first += tdm_join_splits) {
        const tdm_some now = next;
        if (first + tdm_join_splits < item.splits)
          next.read(sums, results, stride, a.size, first + tdm_join_splits, item.splits);
        // l is 0: the row saw nothing of this split.
        const float mine = first + lane < item.splits ? now.split.l : 0;
        const tdm_factors factors = tdm_split_factors(before, {now.split.m, mine != 0.0f});
        TDM_UNROLL
        for (int eight = 0; eight < tdm_join_splits; eight += 8) {
          if (first + eight >= item.splits)
            break;
          TDM_UNROLL
          for (int s = eight; s < eight + 8; s++) {
            const float add = tdm_of_lane(mine, s);
            const tdm_factors f = {tdm_of_lane(factors.old, s), tdm_of_lane(factors.add, s)};
            const float joined_l = tdm_join_result(l, add, f), joined_o = tdm_join_result(o, now.results[s], f);
            l = add != 0.0f ? joined_l : l;
            o = add != 0.0f ? joined_o : o;
          }
        }
      }
      if (dimension < a.size)
        a.out[(int64_t)(item.row0 + row / group) * a.ldq + (kv * group + row % group) * a.size + dimension] = tdm_bf16(o * (1.0f / l));
    }
  }
}
