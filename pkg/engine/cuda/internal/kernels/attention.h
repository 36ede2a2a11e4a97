// What the kernels of attention share: which tokens a row sees, how keys and values come
// from pages into shared memory, how splits are joined, and where results go.
#ifndef TDM_ATTENTION_H
#define TDM_ATTENTION_H

#include "join.h"

// tdm_chunk is where 16 bytes (eight dimensions) of a token are in a tile of tokens in
// shared memory. Chunks change places so that neither the rows that a quarter of a warp
// reads for scores nor the eight of one tile of ldmatrix share a bank.
template <int size> TDM_INLINE uint8_t *tdm_chunk(uint8_t *tile, int token, int chunk) {
  const int place = size == 32 ? chunk ^ (token >> 1 & 3) : chunk ^ (token & 1) << 2 ^ (token >> 1 & 3);
  return tile + token * (size * 2) + place * 16;
}

// tdm_work is an item for one KV head.
struct tdm_work {
  tdm_item item;
  int kv, group, rows;
  int begin, end; // tokens of the context that some row sees

  static TDM_METHOD tdm_work of(const tdm_attention_args &a, int n, int kv) {
    tdm_work w;
    w.item = a.items[n];
    w.kv = kv;
    w.group = a.heads / a.kv_heads;
    w.rows = w.item.tokens * w.group;
    w.begin = a.window > 0 ? tdm_most(0, w.item.position + 1 - a.window) : 0;
    w.end = w.item.position + w.item.tokens;
    return w;
  }
};

// tdm_seen is the tokens of a split that somebody sees, from the split's start: none if
// end is not above begin.
struct tdm_seen {
  int begin, end;
};

// tdm_split_seen is what some row of an item sees of a split.
TDM_INLINE tdm_seen tdm_split_seen(const tdm_work &w, int split) {
  return {tdm_most(0, w.begin - split * TDM_SPLIT), tdm_least(TDM_SPLIT, w.end - split * TDM_SPLIT)};
}

// tdm_row_seen is what one row sees of a split.
TDM_INLINE tdm_seen tdm_row_seen(const tdm_attention_args &a, const tdm_work &w, int row, int split) {
  if (row >= w.rows)
    return {0, 0};
  const int next = w.item.position + row / w.group + 1 - split * TDM_SPLIT;
  return {a.window > 0 ? tdm_most(0, next - a.window) : 0, tdm_least(TDM_SPLIT, next)};
}

// tdm_query is the address of eight dimensions of a query row, or null where there is
// nothing but zeros.
TDM_INLINE const uint16_t *tdm_query(const tdm_attention_args &a, const tdm_work &w, int row, int chunk) {
  if (row >= w.rows || 8 * chunk >= a.size)
    return nullptr;
  return a.q + (int64_t)(w.item.row0 + row / w.group) * a.ldq + (w.kv * w.group + row % w.group) * a.size + 8 * chunk;
}

// tdm_ring brings the tiles of an item into shared memory in the order in which they are
// used: of each split the keys and then the values of all its tiles that somebody sees.
// Copies are a group a tile. What nobody sees is zeros, and is not read.
template <int size, int stages> struct tdm_ring {
  static constexpr int bytes = TDM_TILE_BYTES(size);
  uint8_t *tiles;
  int next = 0, used = 0; // tiles asked for and used, over all items
  int split = 0, tile = 0, end = 0;
  bool values = false;

  TDM_METHOD void enter(const tdm_work &w) {
    for (; split < w.item.last; split++) {
      const tdm_seen seen = tdm_split_seen(w, split);
      if (seen.end > seen.begin) {
        tile = seen.begin / TDM_KEYS;
        end = (seen.end + TDM_KEYS - 1) / TDM_KEYS;
        return;
      }
    }
  }

  TDM_METHOD void begin(const tdm_attention_args &a, const tdm_work &w) {
    split = w.item.first;
    values = false;
    enter(w);
    for (int i = 0; i < stages - 1; i++)
      ask(a, w);
  }

  // ask begins to copy the next tile, if there is one.
  TDM_METHOD void ask(const tdm_attention_args &a, const tdm_work &w) {
    if (split < w.item.last) {
      copy(a, w, tiles + next % stages * bytes, split * TDM_SPLIT + tile * TDM_KEYS);
      if (++tile == end) {
        if (values)
          split++;
        else
          tile = tdm_split_seen(w, split).begin / TDM_KEYS;
        values = !values;
        if (!values)
          enter(w);
      }
    }
    next++;
    tdm_copy_commit();
  }

  // copy begins to copy the tile of tokens from token0 on. Eight threads, or as many as
  // it has chunks, share a token.
  TDM_METHOD void copy(const tdm_attention_args &a, const tdm_work &w, uint8_t *to, int token0) {
    constexpr int sharers = size >= 64 ? 8 : size / 8, at_once = TDM_ATTENTION_THREADS / sharers;
    const int shift = 31 - __builtin_clz((uint32_t)a.block_tokens);
    const int head = ((values ? a.kv_heads : 0) + w.kv) << shift;
    const int chunk0 = tdm_thread() % sharers, first = tdm_thread() / sharers;
    TDM_UNROLL
    for (int pass = 0; pass < TDM_KEYS / at_once; pass++) {
      const int token = first + pass * at_once, position = token0 + token;
      const bool real = position >= w.begin && position < w.end;
      const uint8_t *from = a.pages;
      if (real) {
        const int line = head + (position & (a.block_tokens - 1));
        from += a.tables[w.item.table + (position >> shift)] * a.page_bytes + a.layer_bytes +
                (int64_t)(line * a.size + 8 * chunk0) * 2;
      }
      TDM_UNROLL
      for (int chunk = 0; chunk < size / 8; chunk += sharers)
        tdm_copy16(tdm_chunk<size>(to, token, chunk0 + chunk), from + 16 * chunk, real && 8 * (chunk0 + chunk) < a.size);
    }
  }

  // take waits for the next tile and asks for another one. All threads of the block have
  // then left the tile before.
  TDM_METHOD uint8_t *take(const tdm_attention_args &a, const tdm_work &w) {
    tdm_copy_wait<stages - 2>();
    tdm_barrier();
    ask(a, w);
    return tiles + used++ % stages * bytes;
  }

  // leave is for the end of an item: its tiles have been used, and what was asked for
  // beyond them was nothing. Of an item that sees nothing in this layer's window other
  // copies may still be on their way.
  TDM_METHOD void leave() {
    tdm_copy_wait<0>();
    next = used;
  }
};

// tdm_score is a score of its sum: minus infinity if the row does not see the token.
TDM_INLINE float tdm_score(float sum, float scale, int token, tdm_seen seen) {
  return token >= seen.begin && token < seen.end ? sum * scale : -__builtin_inff();
}

TDM_INLINE float tdm_larger(float x, float y) { return y > x ? y : x; }

// tdm_weigh is exp(score - largest), rounded to bf16 two by two; 0 where the row does not
// see the token. Both are added to l.
TDM_INLINE uint32_t tdm_weigh(float first, float second, float largest, int token, tdm_seen seen, float &l) {
  const float p = token >= seen.begin && token < seen.end ? tdm_exp_down(first - largest) : 0.0f;
  const float q = token + 1 >= seen.begin && token + 1 < seen.end ? tdm_exp_down(second - largest) : 0.0f;
  const uint32_t pair = tdm_pair(p, q);
  l = l + tdm_float(pair << 16);
  l = l + tdm_float(pair & 0xffff0000u);
  return pair;
}

// tdm_write_rows writes what a lane has of 16 rows, in the layout of mma's sums: columns
// of eight dimensions from dimension0 on, of rows lane/4 and lane/4 + 8 after row0.
// Finished rows, or the results of one split for the item's slot and those after it.
template <int columns>
TDM_INLINE void tdm_write_rows(const tdm_attention_args &a, const tdm_work &w, int row0, int dimension0,
                               const float (&o)[columns][4], const tdm_total (&total)[2]) {
  const int lane = tdm_thread() % 32;
  TDM_UNROLL
  for (int half = 0; half < 2; half++) {
    const int line = lane / 4 + 8 * half, row = row0 + line;
    if (row >= w.rows)
      continue;
    const int64_t slot = ((int64_t)(w.item.slot + row0 / TDM_THIN_ROWS) * a.kv_heads + w.kv) * TDM_THIN_ROWS + line;
    uint16_t *out = a.out + (int64_t)(w.item.row0 + row / w.group) * a.ldq + (w.kv * w.group + row % w.group) * a.size;
    const float inverse = 1.0f / total[half].l;
    TDM_UNROLL
    for (int j = 0; j < columns; j++) {
      const int dimension = dimension0 + 8 * j + 2 * (lane % 4);
      if (dimension >= a.size)
        continue;
      if (w.item.slot < 0) {
        *(uint32_t *)(out + dimension) = tdm_pair(o[j][2 * half] * inverse, o[j][2 * half + 1] * inverse);
      } else {
        a.results[slot * a.size + dimension] = o[j][2 * half];
        a.results[slot * a.size + dimension + 1] = o[j][2 * half + 1];
      }
    }
    if (w.item.slot >= 0 && dimension0 == 0 && lane % 4 == 0) {
      a.sums[slot * 2] = total[half].m;
      a.sums[slot * 2 + 1] = total[half].l;
    }
  }
}

#endif
