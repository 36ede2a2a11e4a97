// What tiled and wide products share: which block has which tile, and what becomes of the
// sums of a warp.
#ifndef TDM_PRODUCT_TILES_H
#define TDM_PRODUCT_TILES_H

#include "product.h"

constexpr int tdm_lines = 128; // of weights, of a block

// tdm_per_tile is how many outputs sixteen lines are.
constexpr int tdm_per_tile(int then) { return then == TDM_SWIGLU ? 8 : 16; }

// tdm_tile is where a block works: a tile of outputs, and one of rows.
struct tdm_tile {
  int outputs, rows;
};

// tdm_tile_of gives blocks their tiles so that those that run at once share weights and
// rows in the L2 cache: eight tiles of rows beside each other, then the next outputs. Blocks
// for which there is none get one past the rows.
TDM_INLINE tdm_tile tdm_tile_of(int row_tiles) {
  constexpr int beside = 8;
  const int width = tdm_grid_x(), n = tdm_block_y() * width + tdm_block_x();
  if (n >= row_tiles * width)
    return {0, row_tiles};
  const int first = n / (beside * width) * beside, at = n - first * width, rows = tdm_least(row_tiles - first, beside);
  return {at / rows, first + at % rows};
}

// tdm_finish_sums finishes the sums of a warp: of rows from `row` on and tiles of 16 lines
// whose outputs begin at `output`. A lane has, as of tdm_mma, two sums of each of two rows,
// eight lines apart. It asks for the extras of some rows at once, as it has registers for.
template <int then, int tiles, int columns>
TDM_INLINE void tdm_finish_sums(const tdm_product_args &a, const float (&total)[tiles][columns][4], int row, int count, int output) {
  constexpr int lines = then == TDM_SWIGLU ? 1 : 2, together = tiles < 4 ? 4 / tiles : 1;
  const int group = tdm_thread() % 32 / 4, quarter = tdm_thread() % 4;
  TDM_UNROLL
  for (int j0 = 0; j0 < columns; j0 += together) {
    float root[together][2] = {};
    tdm_extra extra[together][2][tiles][lines] = {};
    TDM_UNROLL
    for (int n = 0; n < 2 * together; n++) {
      const int at = row + 8 * (j0 + n / 2) + 2 * quarter + n % 2;
      if (at >= count)
        continue;
      root[n / 2][n % 2] = then != TDM_ADD && a.norm.squares ? a.norm.roots[at] : 1;
      TDM_UNROLL
      for (int m = 0; m < lines * tiles; m++)
        extra[n / 2][n % 2][m / lines][m % lines] = tdm_ask<then>(a, nullptr, at, output + m / lines * tdm_per_tile(then) + m % lines * 8 + group);
    }
    float square[2 * together][tiles] = {}; // of what stands there now
    TDM_UNROLL
    for (int n = 0; n < 2 * together; n++) {
      const int j = j0 + n / 2, c = n % 2, at = row + 8 * j + 2 * quarter + c;
      if (at >= count)
        continue;
      TDM_UNROLL
      for (int i = 0; i < tiles; i++) {
        const int first = output + i * tdm_per_tile(then) + group;
        const float(&s)[4] = total[i][j];
        const float low = tdm_finish<then>(a, at, first, s[c], s[c + 2], root[n / 2][c], extra[n / 2][c][i][0]);
        const float high = then == TDM_SWIGLU ? 0 : tdm_finish<then>(a, at, first + 8, s[c + 2], 0, root[n / 2][c], extra[n / 2][c][i][lines - 1]);
        square[n][i] = low * low + high * high;
      }
    }
    if (then != TDM_ADD || !a.norm.squares)
      continue;
    TDM_UNROLL
    for (int apart = 16; apart > 2; apart /= 2) { // eight lanes, four apart, have sixteen outputs
      TDM_UNROLL
      for (int n = 0; n < 2 * together * tiles; n++)
        square[n / tiles][n % tiles] = square[n / tiles][n % tiles] + tdm_shuffle(square[n / tiles][n % tiles], apart);
    }
    TDM_UNROLL
    for (int n = 0; n < 2 * together * tiles; n++) {
      const int at = row + 8 * (j0 + n / tiles / 2) + 2 * quarter + n / tiles % 2, first = output + n % tiles * tdm_per_tile(then);
      if (at < count && group == 0 && first < a.outputs)
        tdm_leave(a.norm, at, first, square[n / tiles][n % tiles]);
    }
  }
}

#endif
