// What the host and the kernels of the CUDA engine agree on. Plain C, for cgo, for
// clang's CUDA and for the emulation.
//
// Every kernel takes one of these structs by value and nothing else. Pointers are
// addresses in device memory. Sizes are in elements unless they say bytes. bf16 is kept
// as its 16 bits. Matrices of weights are as in the checkpoint, [outputs][K], with K
// padded by zeros to a multiple of TDM_K and outputs to one of TDM_TILE; those in 8 bits are
// in another order within blocks of K. Activations are [rows][ld], ld padded likewise; what
// pads them is zero from the beginning and nobody writes it. Addresses are multiples of 16.
// block_tokens divides TDM_SPLIT.
//
// How many threads and how much shared memory a kernel wants is in tdm_launch.h.
//
// How many rows a step has is in tdm_counts, in device memory, so that a graph made for
// a bucket of rows serves every step that fits: grids are of the bucket, and blocks
// past the counts end at once. Copies write the counts, and no launch: kernels read them, as
// they read weights, before the launches before them have ended.
//
// Arithmetic (class cuda/bf16/bf16/2, docs/decisions/0014-cuda-arithmetic.md): a result
// is a function of its row's inputs alone, never of how many rows a step has, where the
// row stands, or which kernel of a family computes it.
#ifndef TDM_CUDA_H
#define TDM_CUDA_H

#include <stdint.h>

enum {
  TDM_K = 64,          // K of products comes in blocks of 64
  TDM_SLICES = 8,      // products are chains over 8 slices of K, joined in order
  TDM_TILE = 128,      // outputs of a weight matrix are padded to this
  TDM_SQUARES = 16,    // elements of a row whose squares are one sum
  TDM_SPLIT = 256,     // tokens of a split of attention, at fixed positions
  TDM_KEYS = 64,       // tokens of a split that are in shared memory at once
  TDM_THIN_ROWS = 16,  // most query rows (tokens x heads of a KV head) of a thin item
  TDM_TALL_ROWS = 64,  // and of a tall one
  TDM_MOST_HEAD = 256, // largest head size
  TDM_MOST_VOCABULARY = 1 << 18, // of draws, whose sums would not fit otherwise
};

// One step, in device memory.
typedef struct tdm_counts {
  int32_t rows;  // tokens of the batch, or those of which logits are wanted
  int32_t thin;  // items of attention of at most TDM_THIN_ROWS query rows
  int32_t tall;  // items of at most TDM_TALL_ROWS
  int32_t joins; // groups of items whose results are to be joined
} tdm_counts;

// Rows of attention of one sequence against some of its context, for each KV head.
// Query row r of the item is token row0 + r/group of the batch and head
// kv*group + r%group, group being heads/kv_heads.
typedef struct tdm_item {
  int32_t row0;      // first token, as a row of the batch
  int32_t tokens;    // tokens; tokens*group rows fit the kind of item
  int32_t position;  // position of the first token
  int32_t table;     // where its sequence's block table begins in tables
  int32_t first, last; // splits [first, last), first's number being position/TDM_SPLIT
  int32_t slot;      // first slot of results of an item of one split; -1: all splits are
                     // here, the rows are finished
  int32_t reserved;
} tdm_item;

// Items of the same rows: their slots, in order of splits, stride apart.
typedef struct tdm_joint {
  int32_t row0, tokens;
  int32_t slot, stride; // slots of TDM_THIN_ROWS rows; a tall item has 4 of them in turn
  int32_t splits;
  int32_t reserved[3];
} tdm_joint;

// An RMSNorm of rows x that is left to the products behind it: who finishes x leaves
// bf16(x*weight) and sums of squares, and who multiplies those rows by a matrix multiplies
// the result by r = 1/sqrt(mean(x^2) + eps). See deferred.h for the order of the sums.
typedef struct tdm_deferred {
  const float *weight;  // [width]
  uint16_t *scaled;     // bf16 [rows][ld] = bf16(x*weight)
  float *squares;       // [rows][lds], each of TDM_SQUARES elements; null: there is no norm
  float *roots;         // [rows]: r, which tdm_roots makes for tiled products
  int64_t ld, lds;      // lds is a multiple of 4
  int32_t width;
  float eps;
} tdm_deferred;

// norm.roots[row] = r. Grid: one block for each TDM_ROOTS_ROWS rows. Block: 256.
typedef struct tdm_roots_args {
  const int32_t *count; // in device memory: how many rows
  tdm_deferred norm;
} tdm_roots_args;

// x[row] = table[token[row]], as float32, with what the norm that follows wants of it.
// Grid: rows. Block: 256.
typedef struct tdm_embed_args {
  const tdm_counts *counts;
  const int32_t *tokens;
  const uint16_t *table; // bf16 [vocabulary][ldt]
  float *x;              // [rows][ldx]
  int64_t ldt, ldx;
  int32_t width, reserved;
  tdm_deferred norm;     // of x
} tdm_embed_args;

// RMSNorm of rows to bf16: out[i] = bf16((x*r)*weight), r = 1/sqrt(mean(x^2) + eps), of
// the row index[i] of x, or i where index is null. Sums are as in the class. Grid: rows.
// Block: 256.
typedef struct tdm_norm_args {
  const int32_t *count; // in device memory: how many rows
  const int32_t *index;
  const float *x;       // [rows][ldx]
  const float *weight;  // [width]
  uint16_t *out;        // bf16 [rows][ldo]
  int64_t ldx, ldo;
  int32_t width;
  float eps;
} tdm_norm_args;

// What a product does with the sums over k of a[row][k] * w[o][k]:
//   store  out float32 [rows][ldo] = r * sum
//   add    out float32 [rows][ldo] += sum, with what the norm that follows wants of it
//   swiglu out bf16 [rows][ldo] = bf16(silu(r * sum of w) * (r * sum of up))
//   heads  as tdm_product_heads_args says
// r is 1 where there is no norm.
typedef struct tdm_product_args {
  const int32_t *count;  // in device memory: how many rows
  const uint16_t *a;     // bf16 [rows][lda]
  const void *w;         // [outputs][ldw], of the kernel's type: see tdm_quantize_args
  const void *up;        // swiglu: [outputs][ldw]
  void *out;
  float *parts;          // sliced and joined products: sums of slices, see TDM_PARTS_BYTES
  uint8_t *arranged;     // wide products: the rows, see TDM_ARRANGED_BYTES and tdm_arrange
  int64_t lda, ldw, ldo; // lda and ldw are multiples of TDM_K
  int32_t k;             // a multiple of TDM_K: padded
  int32_t outputs;       // not padded: what is written
  tdm_deferred norm;     // of a; of add: of out
  const float *scales;   // [outputs]: what sums are multiplied by first; null: they are not
  const float *up_scales; // swiglu: those of up, [outputs]; null where scales is
} tdm_product_args;

// Rows of bf16 weights to 8 bits (docs/decisions/0017-cuda-eight-bits.md), with one scale
// a row. m is the largest magnitude of the row:
//   int8  scale = m/127, q = the integer nearest to w/scale, ties to even
//   fp8   scale = m/448, q = the e4m3 nearest to w/scale, ties to even, at most 448
// with m/127, m/448 and w/scale rounded to float32. Where m is 0, infinite or NaN all q are
// 0, so that a row's products are 0 or NaN. A line of a block of K, TDM_K bytes, is in the
// order of tdm_byte_k. Grid: rows. Block: 256.
typedef struct tdm_quantize_args {
  const uint16_t *from; // bf16 [rows][ld]
  uint8_t *to;          // [rows][ld]
  float *scales;        // [rows]
  int64_t ld;           // a multiple of TDM_K: what pads a row is zero
} tdm_quantize_args;

// From the products of queries, keys and values: bias, norm of each head, rotary
// embedding; queries to q, keys and values to the pages. Grid: rows. Block: 256.
typedef struct tdm_heads_args {
  const tdm_counts *counts;
  const float *qkv;           // [rows][ld]: heads, then KV heads' keys, then values
  const float *bias;          // [(heads + 2 kv_heads) * size], or null
  const float *q_norm, *k_norm; // [size], or null
  const float *cos, *sin;     // [positions][size/2]
  const int32_t *positions;   // [rows]
  const int32_t *slots;       // [rows]: block * block_tokens + place in it
  uint16_t *q;                // bf16 [rows][ldq]
  uint8_t *pages;             // see tdm_page
  int64_t ld, ldq;
  int64_t page_bytes, layer_bytes; // of a page; where the layer's slice begins in it
  int32_t heads, kv_heads, size, block_tokens;
  float eps;
  int32_t stride;             // of heads in q and in pages: size or more, zeros between
  int32_t fp8, reserved;      // whether keys and values are kept in fp8, else in bf16
} tdm_heads_args;

// A product of queries, keys and values with what tdm_heads does of it, the same bits: for
// heads without a norm whose size is a multiple of 16, and few rows. An output is two
// dimensions of a head, size/2 apart, so there are half as many as rows of w; out, qkv and
// what only tdm_heads reads are not used.
typedef struct tdm_product_heads_args {
  tdm_product_args product;
  tdm_heads_args heads;
} tdm_product_heads_args;

// A slice, one layer of a block, holds bf16 keys as [kv head][token][dimension], then
// values likewise. A page is a block's slices side by side.
//
// In fp8 keys and values are e4m3, a byte each, in the same order but for dimensions, which
// are 0, 2, 1, 3 of each four. Behind them are scales of keys as [kv head][token], then of
// values: powers of two, a byte each that is float32's exponent of it, 0 for the scale 0
// and 255 for infinity. block_tokens is then a multiple of 16.

// Attention. Persistent: a block takes items blockIdx.x, + gridDim.x, ... for KV head
// blockIdx.y. Block: 128. Kernels are named by TDM_HEAD(size), see tdm_launch.h: sizes
// below are padded by zeros on the way. Those for keys and values in fp8 have names of
// their own, ending in _fp8.
typedef struct tdm_attention_args {
  const int32_t *count;     // in device memory: counts->thin or counts->tall
  const tdm_item *items;
  const int32_t *tables;    // block tables
  const uint16_t *q;        // bf16 [rows][ldq]
  const uint8_t *pages;
  uint16_t *out;            // bf16 [rows][ldq]: of finished rows
  float *results;           // [slot][kv head][TDM_THIN_ROWS][size]: not divided by l
  float *sums;              // [slot][kv head][TDM_THIN_ROWS][2]: m and l; l is 0 where
                            // the row saw nothing
  int64_t ldq, page_bytes, layer_bytes; // page_bytes is below 4 GiB
  int32_t heads, kv_heads, size, block_tokens;
  int32_t window;           // of the layer, in tokens; 0 sees all
  float scale;              // 1/sqrt(size)
} tdm_attention_args;

// Joins results of splits in order. Grid and block as attention's: four blocks share an item.
typedef struct tdm_join_args {
  const int32_t *count;     // counts->joins
  const tdm_joint *joins;
  const float *results, *sums;
  uint16_t *out;            // bf16 [rows][ldq]
  int64_t ldq;
  int32_t heads, kv_heads, size, reserved;
} tdm_join_args;

// to[i] = from[index[i]], rows of whole 16 bytes. Grid: rows. Block: 256.
typedef struct tdm_gather_args {
  const int32_t *count;
  const int32_t *index;     // [rows]
  const uint8_t *from;
  uint8_t *to;
  int64_t row_bytes;        // a multiple of 16
} tdm_gather_args;

// out[i] = bf16(silu(gate[i]) * up[i]), where another library computed the two products,
// which is another class (docs/decisions/0016-cublaslt-products.md). A row of both has the
// gates and, from `up` on, what they let through. Grid: rows. Block: 256.
typedef struct tdm_swiglu_args {
  const int32_t *count;
  const uint16_t *both; // bf16 [rows][ld]
  uint16_t *out;        // bf16 [rows][ldo]
  int64_t ld, ldo;      // multiples of TDM_K
  int32_t up, width;    // up is a multiple of TDM_K
} tdm_swiglu_args;

// How a row wants its token drawn: see pkg/sampler's Params. Temperature 0 is the likeliest
// token.
typedef struct tdm_wish {
  float temperature;
  int32_t top_k;            // 0: all
  float top_p;              // 0 and 1: all
  float min_p;
  uint64_t seed, offset;
} tdm_wish;

// A token for each row of logits, by steps 2 to 5 and 7 of the definition in pkg/sampler
// (step 6, typical_p, is the host's): the first of the likeliest where the wish is for that;
// -1 where a logit is NaN or the largest is infinite. Grid: rows. Block: 1024.
typedef struct tdm_draw_args {
  const int32_t *count;
  const tdm_wish *wishes;   // [rows]
  const float *logits;      // [rows][ld]
  int32_t *tokens;          // [rows]
  int64_t ld;
  int32_t vocabulary;       // at most TDM_MOST_VOCABULARY
  int32_t reserved;
} tdm_draw_args;

#endif
