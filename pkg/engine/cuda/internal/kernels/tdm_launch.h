// How the kernels are launched: threads of a block, bytes of shared memory, and what a
// block takes. Constant expressions, for the kernels, the host and the tests alike.
#ifndef TDM_LAUNCH_H
#define TDM_LAUNCH_H

#include "tdm_cuda.h"

enum {
  TDM_ROW_THREADS = 256,       // embed, norm: a block a row; heads: a block some heads of a row
  TDM_HEADS_BLOCK = 8,         // a head a warp
  TDM_NORM_SHARED = 8 * 4,     // a sum a warp
  TDM_QUANTIZE_SHARED = 8 * 4, // a maximum a warp
  TDM_ROOTS_ROWS = 8,          // a row a warp
  TDM_DRAW_THREADS = 1024,
  TDM_DRAW_CHUNKS = 512,       // most chunks of a vocabulary, a sum each
  TDM_DRAW_BINS = 2048,        // values of a digit, three words each
  TDM_DRAW_SHARED = (TDM_DRAW_CHUNKS + 1) * 8 + TDM_DRAW_BINS * 3 * 4,
  TDM_PRODUCT_THREADS = 256,
  TDM_ATTENTION_THREADS = 128, // of decode, and join
  TDM_TALL_THREADS = 256,      // attention of prompts
  TDM_JOIN_BLOCKS = 4,         // that share an item
};

// Thin products, by the most rows they take: 8 or 16. A block has a tile of 16 sums, which
// are 16 outputs, and of SwiGLU and heads 8, of two sums each. In shared memory are stages
// of weights, with three blocks on a multiprocessor of sm_90, and the rows' roots. The
// slices' sums come where the weights were, a row padded by four so that lanes write to
// different banks.
#define TDM_THIN_LINE (16 + 4)
#define TDM_THIN_WEIGHTS (64 * 1024)
#define TDM_THIN_SHARED(rows) (TDM_THIN_WEIGHTS + (rows) * 4)
#define TDM_THIN_OUTPUTS(paired) ((paired) ? 8 : 16)

// Tiled products, of 64 or 128 rows: outputs of a block, which SwiGLU halves. In shared
// memory are stages of 64 k of weights, of 1 or 2 bytes, and activations: as many as there
// is room for in 96 KiB, which every GPU since sm_80 has.
#define TDM_TILED_OUTPUTS(swiglu) ((swiglu) ? 64 : 128)
#define TDM_TILED_THREADS(rows) ((rows) <= 64 ? 128 : 256)
#define TDM_TILED_SHARED (96 * 1024)
#define TDM_TILED_STAGE(rows, bytes) ((128 * (bytes) + (rows) * 2) * TDM_K)

// Wide products, of bf16 weights on sm_90a alone: outputs of a block as of tiled ones,
// TDM_WIDE_ROWS rows, which tdm_arrange, a block for 64 k of them, brings into order. A stage
// is 64 k of weights and of rows. Each has two mbarriers.
#define TDM_WIDE_ROWS 192
#define TDM_WIDE_THREADS 256
#define TDM_WIDE_STAGES 5
#define TDM_WIDE_STAGE ((128 + TDM_WIDE_ROWS) * TDM_K * 2)
#define TDM_WIDE_SHARED (TDM_WIDE_STAGES * (TDM_WIDE_STAGE + 2 * 8))
#define TDM_ARRANGE_THREADS (2 * TDM_WIDE_ROWS)
#define TDM_ARRANGED_BYTES(k, rows) (((int64_t)(rows) + TDM_WIDE_ROWS - 1) / TDM_WIDE_ROWS * TDM_WIDE_ROWS * (k) * 2)

// Sliced products: grid TDM_SLICES blocks for each tile, and one row of blocks for each
// TDM_SLICED_ROWS rows; shared memory as tiled ones. Joined: TDM_SLICED_ROWS/8 blocks for
// each tile, likewise, with the roots of their rows in shared memory. Between them is what
// TDM_PARTS_BYTES says.
#define TDM_SLICED_ROWS 64
#define TDM_JOINED_SHARED (8 * 4)
#define TDM_PARTS_BYTES(tiles, rows) \
  ((int64_t)(((rows) + TDM_SLICED_ROWS - 1) / TDM_SLICED_ROWS) * TDM_SLICES * (tiles) * TDM_SLICED_ROWS * 128 * 4)

// Attention's kernels are for heads of 32, 64, 128 and 256, and take any smaller size that
// is a multiple of 16. A tile is some tokens of keys or of values. Those of fp8 are half as
// large, and have the scales of two splits beside them, of keys and of values.
#define TDM_HEAD(size) ((size) <= 32 ? 32 : (size) <= 64 ? 64 : (size) <= 128 ? 128 : 256)
#define TDM_TILE_BYTES(tokens, head, fp8) ((tokens) * (head) * ((fp8) ? 1 : 2))
#define TDM_SCALE_BYTES(fp8) ((fp8) ? 2 * 2 * TDM_SPLIT : 0)
// A thin block has also the weights of a split, bf16, a row padded by 16 bytes, and the
// largest score and the sum of weights by warp and row.
#define TDM_THIN_STAGES 4
#define TDM_WEIGHTS_LINE (TDM_SPLIT * 2 + 16)
#define TDM_ATTENTION_THIN_SHARED(head, fp8)                                              \
  (TDM_THIN_STAGES * TDM_TILE_BYTES(TDM_KEYS, head, fp8) + TDM_SCALE_BYTES(fp8) +         \
   TDM_THIN_ROWS * TDM_WEIGHTS_LINE + 2 * 4 * TDM_THIN_ROWS * 4)
// A tall block has two tiles, its queries, the weights of a tile, bf16, and the largest score
// and the sum of weights by row and quarter of the tokens. Up to heads of 128 that is less
// than 99 KiB, which every GPU since sm_80 has.
#define TDM_TALL_STAGES 2
#define TDM_TALL_KEYS(head) ((head) <= 128 ? 2 * TDM_KEYS : TDM_KEYS)
#define TDM_ATTENTION_TALL_SHARED(head, fp8)                                              \
  (TDM_TALL_STAGES * TDM_TILE_BYTES(TDM_TALL_KEYS(head), head, fp8) + TDM_SCALE_BYTES(fp8) + \
   TDM_TALL_ROWS * ((head) + TDM_TALL_KEYS(head)) * 2 + 2 * 4 * TDM_TALL_ROWS * 4)

#endif
