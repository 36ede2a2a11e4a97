// A forward pass as jobs of the pool: phases with a barrier between, work split
// over outputs, rows and heads, never over K, so that the number of threads
// cannot change a result.

#include "tdm_kernels.h"
#include "tdm_scalar.h"

// What threads draw items of in a layer. tdm_step.next has one counter each.
enum { DRAW_QKV, DRAW_ATTENTION, DRAW_O, DRAW_GATE_UP, DRAW_DOWN, DRAW_HEAD };

// AHEAD_BYTES of weights are asked for by a thread that waits: about what memory
// gives it in the time of a longer wait, and a part of its second cache.
enum { AHEAD_BYTES = 128 << 10 };

static int draw(tdm_step *s, int counter) {
	return atomic_fetch_add_explicit(&s->next[counter], 1, memory_order_relaxed);
}

static int panels_of(int n) { return (n + TDM_LANES - 1) / TDM_LANES; }
static int pairs_of(int k) { return (k + 1) / 2; }
static size_t groups_of(int k) { return ((size_t)k + TDM_GROUP - 1) / TDM_GROUP; }

// run_product computes (unit, rows) items; the rows of a unit are neighbours, so
// that its weights stay in this core's cache. A thread's first item is the one of
// its number, so that it can look ahead; others are drawn.
static void run_product(tdm_step *s, const tdm_team *team, int counter, const tdm_product *p) {
	int blocks = (p->rows + TDM_PRODUCT_ROWS - 1) / TDM_PRODUCT_ROWS;
	int items = (p->panels + TDM_UNIT_PANELS - 1) / TDM_UNIT_PANELS * blocks;
	const tdm_kernels *k = s->kernels;
	void (*product)(const tdm_product *, int, int, int) = p->packed == TDM_INT4 ? k->product_int4 : p->packed == TDM_INT8 ? k->product_int8 : k->product;
	for (int i = team->thread; i < items; i = team->threads + draw(s, counter)) {
		int row0 = i % blocks * TDM_PRODUCT_ROWS, row1 = row0 + TDM_PRODUCT_ROWS;
		product(p, i / blocks, row0, row1 < p->rows ? row1 : p->rows);
	}
}

// panel_bytes is the size of a panel of a product's weights.
static size_t panel_bytes(const tdm_product *p) {
	if (p->packed == TDM_PAIRS)
		return p->pairs * TDM_LANES * sizeof(uint32_t);
	return p->groups * (p->packed == TDM_INT4 ? TDM_INT4_BYTES : TDM_GROUP_BYTES);
}

// ahead_of is what a thread reads first in a product: the beginning of its first unit, or
// where its panels are read side by side the beginnings of those.
static tdm_ahead ahead_of(const tdm_team *team, const tdm_product *p) {
	const int blocks = (p->rows + TDM_PRODUCT_ROWS - 1) / TDM_PRODUCT_ROWS;
	const int panel = team->thread / blocks * TDM_UNIT_PANELS, panels = p->panels - panel;
	const size_t stride = panel_bytes(p);
	const uint8_t *start = (const uint8_t *)p->w + (size_t)panel * stride;
	if (p->in_turn && p->packed != TDM_PAIRS && p->rows == 1)
		return (tdm_ahead){.start = start, .stride = 0, .bytes = AHEAD_BYTES, .parts = panels > 0};
	return (tdm_ahead){.start = start, .stride = stride,
		.bytes = stride < AHEAD_BYTES / TDM_UNIT_PANELS ? stride : AHEAD_BYTES / TDM_UNIT_PANELS,
		.parts = panels < 0 ? 0 : panels < TDM_UNIT_PANELS ? panels : TDM_UNIT_PANELS};
}

// quantize_row turns row r of a product's activations into int8, if products are.
static void quantize_row(tdm_step *s, int r, const uint16_t *x, int n) {
	const size_t first = (size_t)r * groups_of(n);
	if (s->quantized.values)
		s->kernels->quantize(s->quantized.values + first * TDM_GROUP, s->quantized.scales + first, x, n);
}

// quantize_rows does so with activations that all threads took part in, behind a
// barrier, and waits for them again.
static void quantize_rows(tdm_step *s, const tdm_team *team, tdm_ahead *ahead, const uint16_t *x, size_t ldx, int n) {
	if (!s->quantized.values)
		return;
	for (int r = team->thread; r < s->rows; r += team->threads)
		quantize_row(s, r, x + (size_t)r * ldx, n);
	tdm_pool_barrier_ahead(team, ahead);
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
		m->heads, m->kv_heads, m->head_size, m->block_tokens, s->kv};
	const int adjusted = w->qkv_bias || w->q_norm;
	for (int r = team->thread; r < s->rows; r += team->threads) {
		const tdm_sequence *q = &s->sequences[s->row_sequence[r]];
		int position = q->start + r - q->row0;
		int32_t block = s->blocks[q->table + position / m->block_tokens];
		if (adjusted)
			s->kernels->adjust(&rows, r);
		s->kernels->rotate(&rows, r, slice_of(s, block), s->mirror[r], position % m->block_tokens);
	}
}

// attend computes an attention item, or a part of one; who is done last with an item's
// parts joins them, so that nobody waits.
static void attend(tdm_step *s, const tdm_attention *a, const tdm_item *it, int row0, int pos0, float *scratch) {
	if (it->parts == 1) {
		s->kernels->attention(a, it->kv_head, row0, pos0, it->count, scratch);
		return;
	}
	float *results = s->results + it->results;
	s->kernels->attention_part(a, it->kv_head, row0, pos0, it->count, it->part, it->parts, results, scratch);
	_Atomic int *unfinished = &s->unfinished[it->whole];
	if (atomic_fetch_sub_explicit(unfinished, 1, memory_order_acq_rel) > 1)
		return;
	atomic_store_explicit(unfinished, it->parts, memory_order_relaxed); // for the next layer, behind barriers
	s->kernels->attention_join(a, it->kv_head, row0, pos0, it->count, results, scratch);
}

static void run_attention(tdm_step *s, const tdm_team *team) {
	const tdm_shape *m = &s->shape;
	float *scratch = s->scratch + (size_t)team->thread * s->scratch_floats;
	for (int i = draw(s, DRAW_ATTENTION); i < s->items; i = draw(s, DRAW_ATTENTION)) {
		const tdm_item *it = &s->item[i];
		const tdm_sequence *q = &s->sequences[it->sequence];
		const tdm_attention a = {s->q, s->ldq, s->mixed, slice_of(s, 0), s->page_bytes, s->blocks + q->table,
			m->heads, m->kv_heads, m->head_size, m->block_tokens, 1.0f / sqrtf((float)m->head_size), s->layer->window, s->kv};
		attend(s, &a, it, q->row0 + it->first, q->start + it->first, scratch);
	}
}

// product_of is one with a layer's matrix.
static tdm_product product_of(const tdm_step *s, const uint16_t *a, size_t lda, const void *w, int k, int n, int mode, void *out, size_t ldo) {
	return (tdm_product){(const uint32_t *)a, lda / 2, s->quantized, w, (size_t)pairs_of(k), groups_of(k), s->rows,
		mode == TDM_SWIGLU ? 2 * panels_of(n) : panels_of(n), n, mode, out, ldo, s->layers_packed, tdm_one_stream()};
}

static tdm_product qkv_of(const tdm_step *s, const tdm_layer_weights *w) {
	const tdm_shape *m = &s->shape;
	return product_of(s, s->normed, s->ldn, w->qkv, m->hidden, (m->heads + 2 * m->kv_heads) * m->head_size, TDM_STORE, s->qkv, s->ldqkv);
}

static tdm_product o_of(const tdm_step *s, const tdm_layer_weights *w) {
	const tdm_shape *m = &s->shape;
	return product_of(s, s->mixed, s->ldq, w->o, m->heads * m->head_size, m->hidden, TDM_ADD, s->x, s->ldx);
}

// start_counting sets what threads draw from to the beginning. Between the last
// draw of a job or layer and the first of the next is a barrier.
static void start_counting(tdm_step *s) {
	for (size_t i = 0; i < sizeof s->next / sizeof s->next[0]; i++)
		atomic_store_explicit(&s->next[i], 0, memory_order_relaxed);
}

// products_part computes queries, keys and values of layer `index`, which rotate_rows turns
// into what attention wants. Nobody looks at s->layer before the first barrier.
static void products_part(tdm_step *s, const tdm_team *team, tdm_ahead *ahead, const tdm_layer_weights *w, int index) {
	const tdm_product qkv = qkv_of(s, w), o = o_of(s, w);
	if (team->thread == 0) {
		s->layer = w;
		s->layer_index = index;
		start_counting(s);
	}
	norm_rows(s, team, w->attention_norm);
	tdm_pool_barrier_ahead(team, ahead);
	run_product(s, team, DRAW_QKV, &qkv);
	*ahead = ahead_of(team, &o);
}

// keys_part is all of that: keys and values are in their pages when all threads are done.
static void keys_part(tdm_step *s, const tdm_team *team, tdm_ahead *ahead, const tdm_layer_weights *w, int index) {
	products_part(s, team, ahead, w, index);
	tdm_pool_barrier_ahead(team, ahead);
	rotate_rows(s, team);
}

// rest_part is what of the layer comes after its keys and values. A thread that
// waits looks ahead at the weights that it reads next, whatever comes between: in
// decode, memory would stand still.
static void rest_part(tdm_step *s, const tdm_team *team, tdm_ahead *ahead) {
	const tdm_shape *m = &s->shape;
	const tdm_layer_weights *w = s->layer;
	const int q = m->heads * m->head_size;
	const tdm_product o = o_of(s, w);
	const tdm_product gate_up = product_of(s, s->normed, s->ldn, w->gate_up, m->hidden, m->ffn, TDM_SWIGLU, s->inner, s->ldf);
	const tdm_product down = product_of(s, s->inner, s->ldf, w->down, m->ffn, m->hidden, TDM_ADD, s->x, s->ldx);
	run_attention(s, team);
	tdm_pool_barrier_ahead(team, ahead);
	quantize_rows(s, team, ahead, s->mixed, s->ldq, q);
	run_product(s, team, DRAW_O, &o);
	*ahead = ahead_of(team, &gate_up);
	tdm_pool_barrier_ahead(team, ahead);
	norm_rows(s, team, w->ffn_norm);
	tdm_pool_barrier_ahead(team, ahead);
	run_product(s, team, DRAW_GATE_UP, &gate_up);
	*ahead = ahead_of(team, &down);
	tdm_pool_barrier_ahead(team, ahead);
	quantize_rows(s, team, ahead, s->inner, s->ldf, m->ffn);
	run_product(s, team, DRAW_DOWN, &down);
}

static void keys_job(void *argument, const tdm_team *team) {
	tdm_step *s = argument;
	unsigned mode = tdm_flush_enter(s->kernels);
	const tdm_product qkv = qkv_of(s, s->first);
	tdm_ahead ahead = ahead_of(team, &qkv);
	keys_part(s, team, &ahead, s->first, s->first_index);
	tdm_flush_leave(mode);
}

static void products_job(void *argument, const tdm_team *team) {
	tdm_step *s = argument;
	unsigned mode = tdm_flush_enter(s->kernels);
	const tdm_product qkv = qkv_of(s, s->first);
	tdm_ahead ahead = ahead_of(team, &qkv);
	products_part(s, team, &ahead, s->first, s->first_index);
	tdm_flush_leave(mode);
}

static void rotate_job(void *argument, const tdm_team *team) {
	tdm_step *s = argument;
	unsigned mode = tdm_flush_enter(s->kernels);
	rotate_rows(s, team);
	tdm_flush_leave(mode);
}

static void rest_job(void *argument, const tdm_team *team) {
	tdm_step *s = argument;
	unsigned mode = tdm_flush_enter(s->kernels);
	const tdm_product o = o_of(s, s->layer);
	tdm_ahead ahead = ahead_of(team, &o);
	rest_part(s, team, &ahead);
	tdm_flush_leave(mode);
}

// layers_job waits for the threads eight times a layer, in int8 ten times: before
// and after the product of qkv, after rotation, attention and o, before and after
// gate and up, and after down.
static void layers_job(void *argument, const tdm_team *team) {
	tdm_step *s = argument;
	unsigned mode = tdm_flush_enter(s->kernels);
	tdm_product qkv = qkv_of(s, s->first);
	tdm_ahead ahead = ahead_of(team, &qkv);
	for (int i = 0;;) {
		keys_part(s, team, &ahead, s->first + i, s->first_index + i);
		tdm_pool_barrier_ahead(team, &ahead);
		rest_part(s, team, &ahead);
		if (++i == s->count)
			break;
		qkv = qkv_of(s, s->first + i);
		ahead = ahead_of(team, &qkv);
		tdm_pool_barrier_ahead(team, &ahead);
	}
	tdm_flush_leave(mode);
}

// WORK_PER_THREAD is how many multiply-adds of a layer are worth another thread. On
// a machine whose cores also run the rest of the process, each barrier of a layer
// can cost a thread's time slice, so that a small model's token is computed sooner
// by one thread than by two (docs/benchmarks.md has the figures).
enum { WORK_PER_THREAD = 2 << 20 };

// run runs a job of so many multiply-adds. The result does not depend on how many
// threads share it.
static void run(tdm_step *s, tdm_job *job, int64_t work) {
	start_counting(s);
	int64_t worth = 1 + work / WORK_PER_THREAD;
	tdm_pool_run(s->pool, worth < s->threads ? (int)worth : s->threads, job, s);
}

// layer_work is the multiply-adds of a layer: products, and attention over what each
// row sees. Its keys alone are worth as many threads as all of it, since the rest
// wants them too.
static int64_t layer_work(const tdm_step *s, const tdm_layer_weights *w) {
	const tdm_shape *m = &s->shape;
	const int64_t q = m->heads * m->head_size;
	int64_t seen = 0;
	for (int row = 0; row < s->rows;) {
		const tdm_sequence *sequence = &s->sequences[s->row_sequence[row]];
		const int end = sequence->start + sequence->count;
		seen += (int64_t)sequence->count * (end < w->window ? end : w->window);
		row += sequence->count;
	}
	return s->rows * (2 * m->hidden * (q + m->kv_heads * m->head_size) + 3 * (int64_t)m->hidden * m->ffn) + 2 * q * seen;
}

void tdm_layer_keys(tdm_step *s, const tdm_layer_weights *w, int index) {
	s->first = w;
	s->first_index = index;
	run(s, keys_job, layer_work(s, w));
}

void tdm_layer_products(tdm_step *s, const tdm_layer_weights *w, int index) {
	s->first = w;
	s->first_index = index;
	run(s, products_job, layer_work(s, w));
}

void tdm_layer_rotate(tdm_step *s) { run(s, rotate_job, layer_work(s, s->layer)); }

void tdm_layer_rest(tdm_step *s) { run(s, rest_job, layer_work(s, s->layer)); }

void tdm_layers(tdm_step *s, const tdm_layer_weights *w, int index, int count) {
	s->first = w;
	s->first_index = index;
	s->count = count;
	run(s, layers_job, layer_work(s, w));
}

int tdm_layers_at_once(const tdm_step *s, const tdm_layer_weights *w, int most) {
	const int64_t some = (64 << 20) / layer_work(s, w); // read at 25 GB/s: 5 ms
	return some < 1 ? 1 : some < most ? (int)some : most;
}

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
	p.packed = s->head_packed;
	unsigned mode = tdm_flush_enter(s->kernels);
	for (int i = team->thread; i < s->head_rows; i += team->threads)
		norm_row(s, i, s->head_row0 + i, s->final_norm);
	tdm_pool_barrier(team);
	run_product(s, team, DRAW_HEAD, &p);
	tdm_flush_leave(mode);
}

void tdm_head(tdm_step *s, const float *norm, const void *output, int row0, int rows) {
	s->final_norm = norm;
	s->output = output;
	s->head_row0 = row0;
	s->head_rows = rows;
	run(s, head_job, (int64_t)rows * s->shape.hidden * s->shape.vocab);
}
