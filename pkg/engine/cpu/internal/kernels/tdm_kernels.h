// Contract of the CPU kernels. docs/decisions/0002-cpu-arithmetic.md,
// 0011-int8-weights.md, 0012-int4-weights.md and 0013-int8-kv.md define what they
// compute, bit for bit; kernels_portable.c is that definition as code.
//
// Words used here:
//   pair    two neighbouring bf16 elements in one uint32, the even one in the
//           low half
//   panel   16 output rows of a weight matrix, [k/2][16] pairs, 64-byte aligned
//   group   128 elements of K that share a scale in int8; one that K does not fill
//           is filled with zeros
//   panel   in int8: for each group the scales of 16 output rows, float[16], then
//           the values, int8 [128/4][16][4]
//   panel   in int4: for each group the scales of 16 output rows, bf16 [128/32][16],
//           one for every 32 elements, then the codes, 4 bits [128/8][2][16][4]: of the
//           64 bytes for each 8 elements of K, the low halves are the first 4, the high
//           halves the others
//   unit    4 panels, the grain of work of a product
//   row     one token of the batch
//   slice   one layer's part of a KV page: keys, then values
//             keys    [kv head][head_size/2][block_tokens] pairs over dimensions
//             values  [kv head][block_tokens/2][head_size] pairs over tokens
//   slice   in int8: codes, then a bf16 scale for each token of a head
//             keys    [kv head][head_size][block_tokens]
//             values  [kv head][block_tokens][head_size]
//             scales of keys, then of values, [kv head][block_tokens] each
//
// No function allocates, blocks or keeps a pointer, except where it says so.
// Every float that enters is flushed: no denormals.
#ifndef TDM_KERNELS_H
#define TDM_KERNELS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
	TDM_LANES = 16,        // virtual lanes of every sum, and rows of a panel
	TDM_UNIT_PANELS = 4,   // panels of a unit
	TDM_GROUP = 128,       // elements of a group
	TDM_GROUP_BYTES = 64 + 16 * TDM_GROUP, // of a group in a panel in int8
	TDM_INT4_GROUP = 32,   // elements of a weight's row that share a scale in int4
	TDM_INT4_SCALES_BYTES = 32 * (TDM_GROUP / TDM_INT4_GROUP), // of a group in a panel in int4
	TDM_INT4_BYTES = TDM_INT4_SCALES_BYTES + 8 * TDM_GROUP, // likewise, codes included
	TDM_SPLIT = 256,       // tokens of an attention split
	TDM_ATTENTION_ROWS = 48, // rows of an attention item, unless one token has more heads
	TDM_SEE_ALL = 1 << 30, // window of a query that sees every token; positions stay below half of it
	TDM_PRODUCT_ROWS = 192   // rows of a product item
};

// TDM_GAP is the bytes that nobody may touch between two parts of one memory:
// none, but under AddressSanitizer, which finds there what runs over a part's end.
#if defined(__SANITIZE_ADDRESS__)
#define TDM_GAP 4096
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TDM_GAP 4096
#endif
#endif
#ifndef TDM_GAP
#define TDM_GAP 0
#endif

enum { TDM_STORE, TDM_ADD, TDM_SWIGLU };

// How a matrix is packed, which says how it is multiplied; and how keys and values are
// kept: TDM_PAIRS or TDM_INT8.
enum { TDM_PAIRS, TDM_INT8, TDM_INT4 };

// tdm_quantized are rows of activations in int8.
typedef struct tdm_quantized {
	int8_t *values; // [row][group][128]
	float *scales;  // [row][group]
} tdm_quantized;

// tdm_product is out = a * transpose(w).
typedef struct tdm_product {
	const uint32_t *a; // activations, rows of pairs; an odd last element is paired with zero
	size_t lda;        // pairs from row to row
	tdm_quantized q;   // activations of product_int8 and product_int4, instead of a
	const void *w;     // packed panels
	size_t pairs;      // pairs of K
	size_t groups;     // groups of K
	int rows;          // rows of a
	int panels;        // panels of w
	int n;             // outputs of a row; not more are written
	int mode;          // TDM_STORE: out = c. TDM_ADD: out = out + c.
	                   // TDM_SWIGLU: panels alternate gate, up; out = bf16(silu(gate) * up)
	void *out;         // float, or uint16_t for TDM_SWIGLU
	size_t ldo;        // elements from row to row
	int packed;        // how w is: TDM_PAIRS, TDM_INT8 or TDM_INT4
	int in_turn;       // of int8 and int4: whether one row reads a unit's panels one after the other
} tdm_product;

// tdm_rows is what turns products into queries, keys and values.
typedef struct tdm_rows {
	float *qkv; // [row][ld_qkv]: query heads, key heads, value heads; rotate may spoil its row
	size_t ld_qkv;
	const float *bias; // as a row of qkv; NULL: none
	const float *q_norm, *k_norm; // [head_size]; NULL: none
	float norm_eps;
	const float *cos, *sin; // [row][head_size/2]
	uint16_t *q;            // out: [row][ldq]
	size_t ldq;
	int heads, kv_heads, head_size, block_tokens;
	int kv; // how keys and values are kept
} tdm_rows;

// tdm_attention is the attention of one sequence in one layer.
typedef struct tdm_attention {
	const uint16_t *q; // [row][ldq], rotated, bf16
	size_t ldq;
	uint16_t *out; // [row][ldq]
	const uint8_t *slices; // the layer's slice of page 0
	size_t page_bytes;
	const int32_t *blocks; // block table of the sequence
	int heads, kv_heads, head_size, block_tokens;
	float scale;
	int window; // tokens that a query sees, itself included; TDM_SEE_ALL: no limit
	int kv; // how keys and values are kept
} tdm_attention;

// tdm_kernels is one instruction set's implementation.
typedef struct tdm_kernels {
	const char *name;
	int flushes; // whether threads must run with FTZ and DAZ set
	// product computes the outputs of one unit for rows [row0, row1).
	void (*product)(const tdm_product *p, int unit, int row0, int row1);
	// product_int8 is product from p->q and panels in int8.
	void (*product_int8)(const tdm_product *p, int unit, int row0, int row1);
	// product_int4 is product from p->q and panels in int4.
	void (*product_int4)(const tdm_product *p, int unit, int row0, int row1);
	// quantize turns a row of n bf16 elements into groups in int8.
	void (*quantize)(int8_t *values, float *scales, const uint16_t *x, int n);
	// norm writes bf16(x * rms(x) * weight) for one row of n elements.
	void (*norm)(uint16_t *out, const float *x, const float *weight, int n, float inv_n, float eps);
	// adjust adds the bias to a row of qkv, then normalises its query and key
	// heads; a model with neither does not call it.
	void (*adjust)(const tdm_rows *r, int row);
	// rotate writes row's queries to q, and its key and value into slice at
	// token `token` of the block, and into `mirror`, unless that is NULL.
	void (*rotate)(const tdm_rows *r, int row, uint8_t *slice, uint8_t *mirror, int token);
	// attention computes the query heads of one KV head for `count` tokens: rows
	// row0.. at positions pos0... scratch holds tdm_attention_scratch() floats.
	// Pages of blocks that no window reaches are not read.
	void (*attention)(const tdm_attention *a, int kv_head, int row0, int pos0, int count, float *scratch);
	// attention_part does a part of that: the splits whose number, from position 0
	// on, is `part` modulo `parts`. The result of split i goes to results + i *
	// tdm_attention_result(). Parts may run at the same time, with scratch of their own.
	void (*attention_part)(const tdm_attention *a, int kv_head, int row0, int pos0, int count, int part, int parts, float *results, float *scratch);
	// attention_join makes of the results of all parts what attention gives.
	void (*attention_join)(const tdm_attention *a, int kv_head, int row0, int pos0, int count, float *results, float *scratch);
	// expf computes n exponentials; only tests call it.
	void (*exps)(float *out, const float *x, int n);
} tdm_kernels;

extern const tdm_kernels tdm_portable;
#if defined(__x86_64__)
extern const tdm_kernels tdm_avx2, tdm_avx512, tdm_avx512bf16, tdm_avx512mixed, tdm_avx512amx;
// What AVX2 computes in int8 and int4, which other sets use too.
void tdm_avx2_product_int8(const tdm_product *p, int unit, int row0, int row1);
void tdm_avx2_product_int4(const tdm_product *p, int unit, int row0, int row1);
void tdm_avx2_quantize(int8_t *values, float *scales, const uint16_t *x, int n);
// What the sets with AVX-512 compute in int8 and int4: products with VNNI where tdm_vnni
// says that the processor has it, else as AVX2 does.
void tdm_avx512_product_int8(const tdm_product *p, int unit, int row0, int row1);
void tdm_avx512_product_int4(const tdm_product *p, int unit, int row0, int row1);
void tdm_avx512_quantize(int8_t *values, float *scales, const uint16_t *x, int n);
int tdm_vnni(void);
#endif

// tdm_kernels_at is the i-th implementation, best first, or NULL after the
// last; *usable says whether this processor runs it.
const tdm_kernels *tdm_kernels_at(int i, int *usable);
// tdm_int8_path names what a set multiplies int8 and int4 with on this processor.
const char *tdm_int8_path(const tdm_kernels *k);

// tdm_one_stream says whether one row of int8 or int4 is read fastest from the first weight
// to the last here, not from four panels side by side. What is computed is the same.
int tdm_one_stream(void);

// tdm_attention_positions is how many tokens an attention item may have.
int tdm_attention_positions(int heads, int kv_heads);
// tdm_attention_scratch is the floats one attention item needs.
size_t tdm_attention_scratch(int heads, int kv_heads, int head_size);
// tdm_attention_result is the floats of one split's result, of an item of so many rows.
size_t tdm_attention_result(int rows, int head_size);

// tdm_flush_enter sets FTZ and DAZ on this thread, if k wants that, and returns what was set;
// tdm_flush_leave puts that back.
unsigned tdm_flush_enter(const tdm_kernels *k);
void tdm_flush_leave(unsigned saved);

// tdm_allocate maps zeroed memory outside every heap, page-aligned; NULL if
// there is none. tdm_release gives it back. Under AddressSanitizer nobody may
// touch a page before it and one after it, nor what tdm_forbid names inside it;
// elsewhere tdm_forbid does nothing.
void *tdm_allocate(size_t bytes);
void tdm_release(void *memory, size_t bytes);
void tdm_forbid(void *memory, size_t bytes);

// Pool: threads-1 threads of its own, and the caller of tdm_pool_run. Idle
// threads spin for some microseconds, then sleep.
typedef struct tdm_pool tdm_pool;
typedef struct tdm_team { // what a job's thread is told
	tdm_pool *pool;
	int thread, threads;
} tdm_team;
typedef void tdm_job(void *argument, const tdm_team *team);

enum { TDM_MAX_THREADS = 1023 };
// tdm_pool_new starts the threads, at most TDM_MAX_THREADS; NULL if it cannot.
tdm_pool *tdm_pool_new(int threads);
// tdm_pool_run runs job on `threads` threads, the caller's included, and
// returns when all are done. One run at a time.
void tdm_pool_run(tdm_pool *pool, int threads, tdm_job *job, void *argument);
// tdm_pool_barrier waits until every thread of the job has called it.
void tdm_pool_barrier(const tdm_team *team);
// tdm_ahead is memory that a thread reads next: `bytes` of each of `parts` parts
// that lie `stride` apart. It may reach over the end of what is read.
typedef struct tdm_ahead {
	const uint8_t *start;
	size_t stride, bytes, done; // done: of each part, asked for already
	int parts;
} tdm_ahead;
// tdm_pool_barrier_ahead asks for that memory while it waits, and notes how far it
// came. Nothing is read, so that nothing depends on it but time.
void tdm_pool_barrier_ahead(const tdm_team *team, tdm_ahead *ahead);
// tdm_pool_free ends and joins the threads.
void tdm_pool_free(tdm_pool *pool);

// Packing.
enum { TDM_BF16, TDM_F16, TDM_F32 };

// tdm_pack_matrix packs source (little-endian, row-major, any alignment) into
// panels that were zero, on `threads` threads of the pool. Row r becomes row
// row0 + r/16*step + r%16 of the packed matrix.
void tdm_pack_matrix(tdm_pool *pool, int threads, uint16_t *panels, const uint8_t *source, int type, int rows, int columns, int row0, int step);
// tdm_pack_int8 does the same to panels in int8.
void tdm_pack_int8(tdm_pool *pool, int threads, uint8_t *panels, const uint8_t *source, int type, int rows, int columns, int row0, int step);
// tdm_pack_int4 does the same to panels in int4.
void tdm_pack_int4(tdm_pool *pool, int threads, uint8_t *panels, const uint8_t *source, int type, int rows, int columns, int row0, int step);
// tdm_to_bf16 rounds n elements.
void tdm_to_bf16(uint16_t *out, const uint8_t *source, int type, size_t n);
// tdm_to_float widens n elements to flushed floats.
void tdm_to_float(float *out, const uint8_t *source, int type, size_t n);

// A forward pass.
typedef struct tdm_shape {
	int hidden, heads, kv_heads, head_size, ffn, vocab, block_tokens;
	float norm_eps;
} tdm_shape;

typedef struct tdm_layer_weights {
	const float *attention_norm, *ffn_norm;
	const float *qkv_bias, *q_norm, *k_norm; // NULL: none
	const void *qkv, *o, *gate_up, *down; // panels
	int window; // of attention, in tokens; TDM_SEE_ALL: no limit
} tdm_layer_weights;

typedef struct tdm_sequence {
	int row0, start, count; // first row, position of it, rows
	int table;              // where its block table starts in blocks
} tdm_sequence;

typedef struct tdm_item { // of attention, or a part of one
	int sequence, kv_head, first, count; // tokens [first, first+count) of the sequence's rows
	int part, parts; // parts is 1 of what is not divided
	int whole;       // of a part: its item's counter in tdm_step.unfinished
	size_t results;  // of a part: where its item's begin in tdm_step.results
} tdm_item;

// tdm_step is one batch on its way through the layers. All pointers are to
// memory of tdm_allocate; strides are in elements.
typedef struct tdm_step {
	const tdm_kernels *kernels;
	tdm_pool *pool;
	int threads;
	tdm_shape shape;
	int layers_packed, head_packed; // how the matrices are: TDM_PAIRS, ...
	int kv; // how keys and values are

	int rows, items;
	const int32_t *tokens;
	const tdm_sequence *sequences;
	const int32_t *row_sequence;
	uint8_t *const *mirror; // of each row, a slice elsewhere that its key and value are written into too; NULL: none
	const tdm_item *item;
	const int32_t *blocks;
	const float *cos, *sin;

	uint8_t *pages;
	size_t page_bytes, slice_bytes;

	float *x;          size_t ldx;   // residual stream
	uint16_t *normed;  size_t ldn;   // normalised, bf16
	float *qkv;        size_t ldqkv;
	uint16_t *q;       size_t ldq;   // rotated queries
	uint16_t *mixed;                 // attention's output, ldq
	uint16_t *inner;   size_t ldf;   // SwiGLU's output
	tdm_quantized quantized;         // the product's activations; NULL: weights are bf16
	float *scratch;    size_t scratch_floats; // a thread
	float *results;                  // of the splits of divided attention items
	_Atomic int *unfinished;         // parts of a divided item that are not done
	float *logits;     size_t ldl;

	// Of the running call.
	const tdm_layer_weights *first; // of `count` layers
	int first_index, count;
	const tdm_layer_weights *layer; // of those, the one that is computed
	int layer_index;
	const uint32_t *embedding_panels;
	const uint16_t *embedding_rows;
	const float *final_norm;
	const void *output;
	int head_row0, head_rows;
	_Atomic int next[8];
} tdm_step;

// tdm_embed fills the residual stream from panels (tied embeddings) or rows.
void tdm_embed(tdm_step *s, const uint32_t *panels, const uint16_t *rows);
// tdm_layer_keys computes the queries, keys and values of one layer for the batch:
// after it the layer's part of the pages is complete. tdm_layer_rest computes what
// else there is of the same layer; in between rows may have been taken out.
void tdm_layer_keys(tdm_step *s, const tdm_layer_weights *w, int index);
// tdm_layer_products and then tdm_layer_rotate are tdm_layer_keys; only the second writes into pages.
void tdm_layer_products(tdm_step *s, const tdm_layer_weights *w, int index);
void tdm_layer_rotate(tdm_step *s);
void tdm_layer_rest(tdm_step *s);
// tdm_layers computes `count` layers from index on, whose weights w and its
// neighbours are, as one job.
void tdm_layers(tdm_step *s, const tdm_layer_weights *w, int index, int count);
// tdm_layers_at_once is how many layers from w on take some milliseconds: what a
// caller gives tdm_layers who wants to be able to stop. 1 to `most`.
int tdm_layers_at_once(const tdm_step *s, const tdm_layer_weights *w, int most);
// tdm_head writes the logits of `rows` rows from row0 on.
void tdm_head(tdm_step *s, const float *norm, const void *output, int row0, int rows);

#endif
