// What the kernels of attention share: which tokens a row sees, how keys and values come
// from pages into shared memory, how splits are joined, and where results go.
#ifndef TDM_ATTENTION_H
#define TDM_ATTENTION_H

#include "fp8.h"
#include "join.h"

// tdm_wide_product is the product of two numbers of 32 bits, one instruction.
TDM_INLINE uint64_t tdm_wide_product(uint32_t x, uint32_t y) { return (uint64_t)x * y; }

// tdm_chunk is where 16 bytes of a token are in a tile of tokens in shared memory, which
// has `line` bytes of each. Chunks change places, by the token's last bits in reverse, so
// that no two of these share a bank: the chunks that a quarter of a warp reads for scores,
// four of each of two tokens; those that half a warp reads in pieces of eight bytes, two of
// each of four tokens; the same one of eight tokens, which is a tile of ldmatrix.
template <int line> TDM_INLINE uint8_t *tdm_chunk(uint8_t *tile, int token, int chunk) {
  constexpr int most = line >= 128 ? 7 : line / 16 - 1;
  const int by = (token & 1) << 2 | (token & 2) | (token >> 2 & 1);
  return tile + token * line + (chunk ^ (by & most)) * 16;
}

// tdm_line is the bytes of a token in a tile of keys or values.
TDM_INLINE constexpr int tdm_line(int size, bool fp8) { return fp8 ? size : 2 * size; }

// tdm_eight is eight dimensions of a token in a tile, as bf16.
template <int size, bool fp8> TDM_INLINE tdm_quad tdm_eight(uint8_t *tile, int token, int eight) {
  if (!fp8)
    return tdm_shared16(tdm_chunk<2 * size>(tile, token, eight));
  uint32_t codes[2];
  tdm_shared8(codes, tdm_chunk<tdm_line(size, fp8)>(tile, token, eight / 2) + 8 * (eight % 2));
  return tdm_fp8_wide(codes);
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
// A tile is `keys` tokens. Copies are a group a tile. What nobody sees is zeros, and is not
// read.
//
// Of fp8 the first tile of a split brings the scales of the whole split, those of keys
// before those of values, for one split and the next in turn. They are to be used before
// the split's first values are taken: with four stages, of which a split has at least two,
// nothing is asked for before that takes their place.
template <int size, bool fp8, int stages, int keys, int threads> struct tdm_ring {
  static_assert(stages <= 4, "scales would be copied over others in use");
  static constexpr int bytes = TDM_TILE_BYTES(keys, size, fp8), line = tdm_line(size, fp8);
  uint8_t *tiles, *scales;
  int next = 0, used = 0; // tiles asked for and used, over all items
  int split = 0, tile = 0, end = 0;
  bool values = false;
  int turn = 0; // fp8: of the split whose scales are asked for next

  TDM_METHOD void enter(const tdm_work &w) {
    for (; split < w.item.last; split++) {
      const tdm_seen seen = tdm_split_seen(w, split);
      if (seen.end > seen.begin) {
        tile = seen.begin / keys;
        end = (seen.end + keys - 1) / keys;
        return;
      }
    }
  }

  TDM_METHOD void begin(const tdm_attention_args &a, const tdm_work &w) {
    begin_item(w);
    turn = split;
    for (int i = 0; i < stages - 1; i++)
      ask(a, w);
  }

  // begin_item goes on with another item, of which nothing has been asked for.
  TDM_METHOD void begin_item(const tdm_work &w) {
    split = w.item.first;
    values = false;
    enter(w);
  }

  // asked says whether all of an item has been asked for.
  TDM_METHOD bool asked(const tdm_work &w) const { return split >= w.item.last; }

  // ask begins to copy the next tile, if there is one.
  TDM_METHOD void ask(const tdm_attention_args &a, const tdm_work &w) {
    if (!asked(w)) {
      if (fp8 && !values && tile == tdm_split_seen(w, split).begin / keys)
        copy_scales(a, w);
      const int token0 = split * TDM_SPLIT + tile * keys;
      uint8_t *to = tiles + (uint32_t)next % stages * bytes;
      if (token0 >= w.begin && token0 + keys <= w.end)
        copy<true>(a, w, to, token0);
      else
        copy<false>(a, w, to, token0);
      if (++tile == end) {
        if (values)
          split++;
        else
          tile = tdm_split_seen(w, split).begin / keys;
        values = !values;
        if (!values)
          enter(w);
      }
    }
    next++;
    tdm_copy_commit();
  }

  // copy begins to copy the tile of tokens from token0 on, `whole` if somebody sees each of
  // them. Eight threads, or as many as it has chunks, share a token.
  template <bool whole> TDM_METHOD void copy(const tdm_attention_args &a, const tdm_work &w, uint8_t *to, int token0) {
    constexpr int sharers = line >= 128 ? 8 : line / 16, at_once = threads / sharers;
    const int shift = 31 - __builtin_clz((uint32_t)a.block_tokens);
    const int head = ((values ? a.kv_heads : 0) + w.kv) << shift;
    static_assert(at_once % 8 == 0, "chunks change places by the last three bits of the token");
    const int chunk0 = tdm_thread() % sharers, first = tdm_thread() / sharers, real_line = tdm_line(a.size, fp8);
    to = tdm_chunk<line>(to, first, chunk0);
    const uint8_t *slices = a.pages + a.layer_bytes + (int64_t)head * real_line + 16 * chunk0; // where a page 0 has it
    const int32_t *table = a.tables + w.item.table;
    // All pages are looked up before the first copy begins, so that none waits for the one
    // before. Of what nobody sees the page of the nearest token that somebody sees is.
    uint32_t pages[keys / at_once];
    TDM_UNROLL
    for (int pass = 0; pass < keys / at_once; pass++) {
      const int position = token0 + first + pass * at_once;
      pages[pass] = (uint32_t)table[(uint32_t)(whole ? position : tdm_least(tdm_most(position, w.begin), w.end - 1)) >> shift];
    }
    TDM_UNROLL
    for (int pass = 0; pass < keys / at_once; pass++) {
      const int position = token0 + first + pass * at_once;
      const bool real = whole || (position >= w.begin && position < w.end);
      const uint8_t *from = slices + tdm_wide_product(pages[pass], (uint32_t)a.page_bytes) + tdm_wide_product(position & (a.block_tokens - 1), real_line);
      TDM_UNROLL
      for (int chunk = 0; chunk < line / 16; chunk += sharers)
        tdm_copy16(to + pass * at_once * line + 16 * chunk, from + 16 * chunk, real && 16 * (chunk0 + chunk) < real_line);
    }
  }

  // copy_scales begins to copy the scales of a split, 16 tokens at a time, of which nobody
  // may see some.
  TDM_METHOD void copy_scales(const tdm_attention_args &a, const tdm_work &w) {
    constexpr int chunks = TDM_SPLIT / 16;
    uint8_t *to = scales + 2 * (turn++ % 2) * TDM_SPLIT;
    if (tdm_thread() >= 2 * chunks)
      return;
    const int shift = 31 - __builtin_clz((uint32_t)a.block_tokens);
    const int part = tdm_thread() / chunks, position = split * TDM_SPLIT + 16 * (tdm_thread() % chunks);
    const bool real = position + 16 > w.begin && position < w.end;
    const uint8_t *from = a.pages;
    if (real)
      from += a.tables[w.item.table + (position >> shift)] * a.page_bytes + a.layer_bytes +
              ((int64_t)2 * a.kv_heads * a.size + part * a.kv_heads + w.kv) * a.block_tokens + (position & (a.block_tokens - 1));
    tdm_copy16(to + part * TDM_SPLIT + 16 * (tdm_thread() % chunks), from, real);
  }

  // key_scales and value_scales are where those of a split are, by its turn among those that
  // were asked for: of one item alone that is its number.
  TDM_METHOD const uint8_t *key_scales(int of) const { return scales + 2 * (of % 2) * TDM_SPLIT; }
  TDM_METHOD const uint8_t *value_scales(int of) const { return key_scales(of) + TDM_SPLIT; }

  // take waits for the next tile and asks for another one. All threads of the block have
  // then left the tile before.
  TDM_METHOD uint8_t *take(const tdm_attention_args &a, const tdm_work &w) {
    uint8_t *tile = take_asked<stages - 2>();
    ask(a, w);
    return tile;
  }

  // take_asked waits for the next tile, behind which `more` have been asked for.
  template <int more> TDM_METHOD uint8_t *take_asked() {
    tdm_copy_wait<more>();
    tdm_barrier();
    return tiles + (uint32_t)used++ % stages * bytes;
  }

  // leave is for the end of an item: its tiles have been used, and what was asked for
  // beyond them was nothing. Of an item that sees nothing in this layer's window other
  // copies may still be on their way.
  TDM_METHOD void leave() {
    tdm_copy_wait<0>();
    next = used;
  }
};

// tdm_scales is the scales of two tokens' keys or values.
struct tdm_scales {
  float first, second;

  static TDM_METHOD tdm_scales of(const uint8_t *scales, int token) {
    const uint32_t exponents = *(const uint16_t *)(scales + token);
    return {tdm_fp8_scale(exponents & 0xff), tdm_fp8_scale(exponents >> 8)};
  }
};

// tdm_scale_sums multiplies sums of queries and codes by the scales of the keys, exactly: in
// the layout of mma, two tokens for each of two rows.
TDM_INLINE void tdm_scale_sums(float (&sum)[4], tdm_scales by) {
  for (int c = 0; c < 4; c++)
    sum[c] = sum[c] * (c % 2 ? by.second : by.first);
}

// tdm_sees is whether a row sees a token of a split; `whole` if it sees all of them.
template <bool whole> TDM_INLINE bool tdm_sees(tdm_seen seen, int token) { return whole || (token >= seen.begin && token < seen.end); }

// tdm_larger_sum is the larger of x and a sum that is not scaled yet, if the row sees the
// token. The scale is positive and rounding keeps the order, so the largest sum times the
// scale is the largest score.
template <bool whole> TDM_INLINE float tdm_larger_sum(float x, float sum, int token, tdm_seen seen) {
  return tdm_larger(x, tdm_sees<whole>(seen, token) ? sum : -__builtin_inff());
}

// tdm_weigh is exp(sum * scale - largest), rounded to bf16 two by two; 0 where the row does
// not see the token. Both are added to l.
template <bool whole>
TDM_INLINE uint32_t tdm_weigh(float first, float second, float scale, float largest, int token, tdm_seen seen, float &l) {
  const float p = tdm_sees<whole>(seen, token) ? tdm_exp_down(first * scale - largest) : 0.0f;
  const float q = tdm_sees<whole>(seen, token + 1) ? tdm_exp_down(second * scale - largest) : 0.0f;
  const uint32_t pair = tdm_pair(p, q);
  l = l + tdm_float(pair << 16);
  l = l + tdm_float(pair & 0xffff0000u);
  return pair;
}

// tdm_weigh_codes is weights times the scales of their tokens' values, which is exact as
// long as bf16 has room for it; 0 where the row does not see the token, whatever its scale.
template <bool whole> TDM_INLINE uint32_t tdm_weigh_codes(uint32_t pair, tdm_scales by, int token, tdm_seen seen) {
  const float p = tdm_sees<whole>(seen, token) ? tdm_float(pair << 16) * by.first : 0.0f;
  const float q = tdm_sees<whole>(seen, token + 1) ? tdm_float(pair & 0xffff0000u) * by.second : 0.0f;
  return tdm_pair(p, q);
}

// tdm_mix_codes adds 16 weighted tokens to two columns. A register of ldmatrix has two codes
// of one token and two of the next, whose first are of one column and whose second of the
// other.
TDM_INLINE void tdm_mix_codes(float (&first)[4], float (&second)[4], tdm_quad p, uint32_t v0, uint32_t v1) {
  tdm_mma(first, p[0], p[1], p[2], p[3], tdm_fp8_pair(v0), tdm_fp8_pair(v1));
  tdm_mma(second, p[0], p[1], p[2], p[3], tdm_fp8_pair(v0 >> 8), tdm_fp8_pair(v1 >> 8));
}

// tdm_mix adds 16 tokens of a tile of values, from token0 on, to some columns, from column0
// on, of blocks of 16 rows; p is the rows' weights as mma wants them.
template <int size, bool fp8, int columns, int blocks>
TDM_INLINE void tdm_mix(float (&mixed)[blocks][columns][4], const tdm_quad (&p)[blocks], uint8_t *values, int token0, int column0) {
  const int lane = tdm_thread() % 32;
  TDM_UNROLL
  for (int j = 0; j < columns; j += fp8 ? 4 : 2) {
    uint32_t v[4];
    // A chunk of codes is two columns. Warps of small heads have one chunk, and bring it twice.
    const int chunk = fp8 ? (column0 + j) / 2 + (columns > 2 ? lane / 16 : 0) : column0 + j + lane / 16;
    tdm_transposed(v, tdm_chunk<tdm_line(size, fp8)>(values, token0 + lane % 16, chunk));
    TDM_UNROLL
    for (int b = 0; b < blocks; b++) {
      if (!fp8) {
        tdm_mma(mixed[b][j], p[b][0], p[b][1], p[b][2], p[b][3], v[0], v[1]);
        tdm_mma(mixed[b][j + 1], p[b][0], p[b][1], p[b][2], p[b][3], v[2], v[3]);
        continue;
      }
      tdm_mix_codes(mixed[b][j], mixed[b][j + 1], p[b], v[0], v[1]);
      if (columns > 2)
        tdm_mix_codes(mixed[b][j + 2], mixed[b][j + 3], p[b], v[2], v[3]);
    }
  }
}

// tdm_write_rows writes what a lane has of 16 rows, in the layout of mma's sums: columns
// of eight dimensions from dimension0 on, of rows lane/4 and lane/4 + 8 after row0.
// Finished rows, or the results of one split for the item's slot and those after it. Where
// mixing took codes of fp8, two columns are sixteen dimensions, and of each four the first
// has two and the second two.
template <bool codes, int columns>
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
      const int dimension = dimension0 + (codes ? 8 * (j & ~1) + 4 * (lane % 4) + 2 * (j & 1) : 8 * j + 2 * (lane % 4));
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
