// How the kernels are launched: threads of a block, bytes of shared memory, and what a
// block takes. Constant expressions, for the kernels, the host and the tests alike.
#ifndef TDM_LAUNCH_H
#define TDM_LAUNCH_H

#include "tdm_cuda.h"

enum {
  TDM_ROW_THREADS = 256,       // embed, norm, heads: a block a row
  TDM_NORM_SHARED = 8 * 4,     // a sum a warp
  TDM_DRAW_THREADS = 1024,
  TDM_DRAW_CHUNKS = 512,       // most chunks of a vocabulary, a sum each
  TDM_DRAW_BINS = 2048,        // values of a digit, three words each
  TDM_DRAW_SHARED = (TDM_DRAW_CHUNKS + 1) * 8 + TDM_DRAW_BINS * 3 * 4,
  TDM_PRODUCT_THREADS = 256,
  TDM_ATTENTION_THREADS = 128, // and join
};

// Thin products, by the most rows they take: 8, 16, 32 or 64. A block has one or two tiles
// of 16 outputs; of SwiGLU a tile is 8 outputs, of two sums each. In shared memory are the
// slices' sums, a row padded by four so that lanes write to different banks.
#define TDM_THIN_TILES(rows) ((rows) <= 16 ? 1 : 2)
#define TDM_THIN_LINE(rows) (16 * TDM_THIN_TILES(rows) + 4)
#define TDM_THIN_SHARED(rows) (TDM_SLICES * (rows) * TDM_THIN_LINE(rows) * 4)
#define TDM_THIN_OUTPUTS(rows, swiglu) (TDM_THIN_TILES(rows) * ((swiglu) ? 8 : 16))

// Tiled products: outputs and rows of a block, which SwiGLU halves of outputs. In shared
// memory are stages of 64 k of weights and activations.
#define TDM_TILED_ROWS 128
#define TDM_TILED_OUTPUTS(swiglu) ((swiglu) ? 64 : 128)
#define TDM_TILED_STAGES 4
#define TDM_TILED_SHARED (TDM_TILED_STAGES * (128 + TDM_TILED_ROWS) * TDM_K * 2)

// Attention's kernels are for heads of 32, 64, 128 and 256, and take any smaller size that
// is a multiple of 16. A tile is TDM_KEYS tokens of keys or of values.
#define TDM_HEAD(size) ((size) <= 32 ? 32 : (size) <= 64 ? 64 : (size) <= 128 ? 128 : 256)
#define TDM_TILE_BYTES(head) (TDM_KEYS * (head) * 2)
#define TDM_THIN_STAGES 4
#define TDM_TALL_STAGES(head) ((head) <= 128 ? 4 : 2)
// A thin block has also the weights of a split, bf16, a row padded by 16 bytes, and the
// largest score and the sum of weights by warp and row.
#define TDM_WEIGHTS_LINE (TDM_SPLIT * 2 + 16)
#define TDM_ATTENTION_THIN_SHARED(head) \
  (TDM_THIN_STAGES * TDM_TILE_BYTES(head) + TDM_THIN_ROWS * TDM_WEIGHTS_LINE + 2 * 4 * TDM_THIN_ROWS * 4)
// A tall block has also its queries, and for the largest heads its results so far.
#define TDM_TALL_KEPT(head) ((head) <= 128)
#define TDM_ATTENTION_TALL_SHARED(head)                                                 \
  (TDM_TALL_STAGES(head) * TDM_TILE_BYTES(head) + TDM_TALL_ROWS * (head) * 2 + \
   (TDM_TALL_KEPT(head) ? 0 : TDM_TALL_ROWS * (head) * 4))

// Bytes of shared memory, as functions for cgo; size is a head's own.
static inline int tdm_shared_norm(void) { return TDM_NORM_SHARED; }
static inline int tdm_shared_draw(void) { return TDM_DRAW_SHARED; }
static inline int tdm_shared_product_thin(int rows) { return TDM_THIN_SHARED(rows); }
static inline int tdm_shared_product_tiled(void) { return TDM_TILED_SHARED; }
static inline int tdm_shared_attention_thin(int size) { return TDM_ATTENTION_THIN_SHARED(TDM_HEAD(size)); }
static inline int tdm_shared_attention_tall(int size) { return TDM_ATTENTION_TALL_SHARED(TDM_HEAD(size)); }

#endif
