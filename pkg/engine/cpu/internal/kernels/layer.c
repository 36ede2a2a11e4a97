// A forward pass as jobs of the pool: phases with a barrier between, work split
// over outputs, rows and heads, never over K, so that the number of threads
// cannot change a result.

#include "tdm_kernels.h"
#include "tdm_scalar.h"

// What threads draw items of in a layer. tdm_step.next has one counter each.
enum { DRAW_QKV, DRAW_ATTENTION, DRAW_O, DRAW_GATE_UP, DRAW_DOWN, DRAW_HEAD };

static int draw(tdm_step *s, int counter) {
	return atomic_fetch_add_explicit(&s->next[counter], 1, memory_order_relaxed);
}

static int panels_of(int n) { return (n + TDM_LANES - 1) / TDM_LANES; }
static int pairs_of(int k) { return (k + 1) / 2; }
static size_t groups_of(int k) { return ((size_t)k + TDM_GROUP - 1) / TDM_GROUP; }

// run_product draws (unit, rows) items; the rows of a unit are neighbours, so
// that its weights stay in this core's cache.
static void run_product(tdm_step *s, int counter, const tdm_product *p) {
	int blocks = (p->rows + TDM_PRODUCT_ROWS - 1) / TDM_PRODUCT_ROWS;
	int items = (p->panels + TDM_UNIT_PANELS - 1) / TDM_UNIT_PANELS * blocks;
	void (*product)(const tdm_product *, int, int, int) = p->q.values ? s->kernels->product_int8 : s->kernels->product;
	for (int i = draw(s, counter); i < items; i = draw(s, counter)) {
		int row0 = i % blocks * TDM_PRODUCT_ROWS, row1 = row0 + TDM_PRODUCT_ROWS;
		product(p, i / blocks, row0, row1 < p->rows ? row1 : p->rows);
	}
}

// quantize_row turns row r of a product's activations into int8, if products are.
static void quantize_row(tdm_step *s, int r, const uint16_t *x, int n) {
	const size_t first = (size_t)r * groups_of(n);
	if (s->quantized.values)
		s->kernels->quantize(s->quantized.values + first * TDM_GROUP, s->quantized.scales + first, x, n);
}

// quantize_rows does so with activations that all threads took part in, behind a
// barrier, and waits for them again.
static void quantize_rows(tdm_step *s, const tdm_team *team, const uint16_t *x, size_t ldx, int n) {
	if (!s->quantized.values)
		return;
	for (int r = team->thread; r < s->rows; r += team->threads)
		quantize_row(s, r, x + (size_t)r * ldx, n);
	tdm_pool_barrier(team);
}

// norm_row writes the norm of row `from` of the residual stream to row `to`.
static void norm_row(tdm_step *s, int to, int from, const float *weight) {
	const tdm_shape *m = &s->shape;
	uint16_t *out = s->normed + (size_t)to * s->ldn;
	s->kernels->norm(out, s->x + (size_t)from * s->ldx, weight, m->hidden, 1.0f / (float)m->hidden, m->norm_eps);
	quantize_row(s, to, out, m->hidden);
}

static void norm_rows(tdm_step *s, const tdm_team *team, const float *weight) {
	for (int r = team->thread; r < s->rows; r += team->threads)
		norm_row(s, r, r, weight);
}

static uint8_t *slice_of(tdm_step *s, int32_t block) {
	return s->pages + (size_t)block * s->page_bytes + (size_t)s->layer_index * s->slice_bytes;
}

static void rotate_rows(tdm_step *s, const tdm_team *team) {
	const tdm_shape *m = &s->shape;
	const tdm_layer_weights *w = s->layer;
	const tdm_rows rows = {s->qkv, s->ldqkv, w->qkv_bias, w->q_norm, w->k_norm, m->norm_eps, s->cos, s->sin, s->q, s->ldq,
		m->heads, m->kv_heads, m->head_size, m->block_tokens};
	const int adjusted = w->qkv_bias || w->q_norm;
	for (int r = team->thread; r < s->rows; r += team->threads) {
		const tdm_sequence *q = &s->sequences[s->row_sequence[r]];
		int position = q->start + r - q->row0;
		int32_t block = s->blocks[q->table + position / m->block_tokens];
		if (adjusted)
			s->kernels->adjust(&rows, r);
		s->kernels->rotate(&rows, r, slice_of(s, block), position % m->block_tokens);
	}
}

static void run_attention(tdm_step *s, const tdm_team *team) {
	const tdm_shape *m = &s->shape;
	float *scratch = s->scratch + (size_t)team->thread * s->scratch_floats;
	for (int i = draw(s, DRAW_ATTENTION); i < s->items; i = draw(s, DRAW_ATTENTION)) {
		const tdm_item *it = &s->item[i];
		const tdm_sequence *q = &s->sequences[it->sequence];
		const tdm_attention a = {s->q, s->ldq, s->mixed, slice_of(s, 0), s->page_bytes, s->blocks + q->table,
			m->heads, m->kv_heads, m->head_size, m->block_tokens, 1.0f / sqrtf((float)m->head_size), s->layer->window};
		s->kernels->attention(&a, it->kv_head, q->row0 + it->first, q->start + it->first, it->count, scratch);
	}
}

static tdm_product product_of(const tdm_step *s, const uint16_t *a, size_t lda, const void *w, int k, int n, int mode, void *out, size_t ldo) {
	return (tdm_product){(const uint32_t *)a, lda / 2, s->quantized, w, (size_t)pairs_of(k), groups_of(k), s->rows,
		mode == TDM_SWIGLU ? 2 * panels_of(n) : panels_of(n), n, mode, out, ldo};
}

// keys_job computes the layer's queries, keys and values; the latter two are in
// their pages when it is done.
static void keys_job(void *argument, const tdm_team *team) {
	tdm_step *s = argument;
	const tdm_shape *m = &s->shape;
	const int q = m->heads * m->head_size, kv = m->kv_heads * m->head_size;
	const tdm_product qkv = product_of(s, s->normed, s->ldn, s->layer->qkv, m->hidden, q + 2 * kv, TDM_STORE, s->qkv, s->ldqkv);
	unsigned mode = s->kernels->flushes ? tdm_flush_enter() : 0;
	norm_rows(s, team, s->layer->attention_norm);
	tdm_pool_barrier(team);
	run_product(s, DRAW_QKV, &qkv);
	tdm_pool_barrier(team);
	rotate_rows(s, team);
	if (s->kernels->flushes)
		tdm_flush_leave(mode);
}

// rest_job is what of the layer comes after its keys and values.
static void rest_job(void *argument, const tdm_team *team) {
	tdm_step *s = argument;
	const tdm_shape *m = &s->shape;
	const tdm_layer_weights *w = s->layer;
	const int q = m->heads * m->head_size;
	const tdm_product o = product_of(s, s->mixed, s->ldq, w->o, q, m->hidden, TDM_ADD, s->x, s->ldx);
	const tdm_product gate_up = product_of(s, s->normed, s->ldn, w->gate_up, m->hidden, m->ffn, TDM_SWIGLU, s->inner, s->ldf);
	const tdm_product down = product_of(s, s->inner, s->ldf, w->down, m->ffn, m->hidden, TDM_ADD, s->x, s->ldx);
	unsigned mode = s->kernels->flushes ? tdm_flush_enter() : 0;
	run_attention(s, team);
	tdm_pool_barrier(team);
	quantize_rows(s, team, s->mixed, s->ldq, q);
	run_product(s, DRAW_O, &o);
	tdm_pool_barrier(team);
	norm_rows(s, team, w->ffn_norm);
	tdm_pool_barrier(team);
	run_product(s, DRAW_GATE_UP, &gate_up);
	tdm_pool_barrier(team);
	quantize_rows(s, team, s->inner, s->ldf, m->ffn);
	run_product(s, DRAW_DOWN, &down);
	if (s->kernels->flushes)
		tdm_flush_leave(mode);
}

// WORK_PER_THREAD is how many multiply-adds are worth another thread. A layer has
// seven barriers, in int8 nine; on a machine whose cores also run the rest of the process, each
// can cost a thread's time slice, so that a small model's token is computed sooner
// by one thread than by two (docs/benchmarks.md has the figures).
enum { WORK_PER_THREAD = 2 << 20 };

// run runs a job of so many multiply-adds. The result does not depend on how many
// threads share it.
static void run(tdm_step *s, tdm_job *job, int64_t work) {
	for (size_t i = 0; i < sizeof s->next / sizeof s->next[0]; i++)
		atomic_store_explicit(&s->next[i], 0, memory_order_relaxed);
	int64_t worth = 1 + work / WORK_PER_THREAD;
	tdm_pool_run(s->pool, worth < s->threads ? (int)worth : s->threads, job, s);
}

// keys_work and rest_work are the multiply-adds of a layer's two parts: products,
// and attention over what each row sees.
static int64_t keys_work(const tdm_step *s) {
	const tdm_shape *m = &s->shape;
	return (int64_t)s->rows * m->hidden * (m->heads + 2 * m->kv_heads) * m->head_size;
}

static int64_t rest_work(const tdm_step *s) {
	const tdm_shape *m = &s->shape;
	const int64_t q = m->heads * m->head_size;
	int64_t seen = 0;
	for (int row = 0; row < s->rows;) {
		const tdm_sequence *sequence = &s->sequences[s->row_sequence[row]];
		const int end = sequence->start + sequence->count, window = s->layer->window;
		seen += (int64_t)sequence->count * (end < window ? end : window);
		row += sequence->count;
	}
	return s->rows * (m->hidden * q + 3 * (int64_t)m->hidden * m->ffn) + 2 * q * seen;
}

void tdm_layer_keys(tdm_step *s, const tdm_layer_weights *w, int index) {
	s->layer = w;
	s->layer_index = index;
	run(s, keys_job, keys_work(s));
}

void tdm_layer_rest(tdm_step *s) { run(s, rest_job, rest_work(s)); }

static void embed_job(void *argument, const tdm_team *team) {
	tdm_step *s = argument;
	const int hidden = s->shape.hidden;
	const size_t pairs = (size_t)pairs_of(hidden);
	for (int r = team->thread; r < s->rows; r += team->threads) {
		const size_t token = (size_t)s->tokens[r];
		const uint16_t *row = s->embedding_rows + token * (size_t)hidden;
		const uint32_t *lane = s->embedding_panels + token / TDM_LANES * pairs * TDM_LANES + token % TDM_LANES;
		float *x = s->x + (size_t)r * s->ldx;
		for (int k = 0; k < hidden; k++) {
			uint16_t e = s->embedding_panels ? (uint16_t)(lane[(size_t)(k / 2) * TDM_LANES] >> 16 * (k % 2)) : row[k];
			x[k] = tdm_float((uint32_t)e << 16);
		}
	}
}

void tdm_embed(tdm_step *s, const uint32_t *panels, const uint16_t *rows) {
	s->embedding_panels = panels;
	s->embedding_rows = rows;
	run(s, embed_job, (int64_t)s->rows * s->shape.hidden);
}

static void head_job(void *argument, const tdm_team *team) {
	tdm_step *s = argument;
	const tdm_shape *m = &s->shape;
	tdm_product p = product_of(s, s->normed, s->ldn, s->output, m->hidden, m->vocab, TDM_STORE, s->logits, s->ldl);
	p.rows = s->head_rows;
	unsigned mode = s->kernels->flushes ? tdm_flush_enter() : 0;
	for (int i = team->thread; i < s->head_rows; i += team->threads)
		norm_row(s, i, s->head_row0 + i, s->final_norm);
	tdm_pool_barrier(team);
	run_product(s, DRAW_HEAD, &p);
	if (s->kernels->flushes)
		tdm_flush_leave(mode);
}

void tdm_head(tdm_step *s, const float *norm, const void *output, int row0, int rows) {
	s->final_norm = norm;
	s->output = output;
	s->head_row0 = row0;
	s->head_rows = rows;
	run(s, head_job, (int64_t)rows * s->shape.hidden * s->shape.vocab);
}
