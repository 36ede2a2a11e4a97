// Checkpoint matrices into panels.

#include "tdm_int4.h"
#include "tdm_kernels.h"
#include "tdm_quantize.h"
#include "tdm_scalar.h"

// tdm_pack is a matrix on its way into panels, which pack_row knows.
typedef struct tdm_pack {
	void (*pack_row)(const struct tdm_pack *p, int r);
	void *panels;
	const uint8_t *source;
	int type, rows, columns, row0, step;
} tdm_pack;

static float half_to_float(uint16_t h) {
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
	if (exponent == 31)
		return tdm_float(sign | 0x7f800000u | fraction << 13);
	if (exponent)
		return tdm_float(sign | (exponent + 112) << 23 | fraction << 13);
	float x = (float)fraction * 0x1p-24f; // exact, and normal in float
	return sign ? -x : x;
}

static float element(const uint8_t *source, int type, size_t i) {
	uint16_t h;
	float f;
	if (type == TDM_F32) {
		memcpy(&f, source + 4 * i, 4);
		return tdm_flush(f);
	}
	memcpy(&h, source + 2 * i, 2);
	return type == TDM_F16 ? half_to_float(h) : tdm_widen(h);
}

void tdm_to_float(float *out, const uint8_t *source, int type, size_t n) {
	for (size_t i = 0; i < n; i++)
		out[i] = element(source, type, i);
}

// packed_row is where row r is in the packed matrix.
static size_t packed_row(const tdm_pack *p, int r) {
	return (size_t)p->row0 + (size_t)(r / TDM_LANES) * (size_t)p->step + (size_t)(r % TDM_LANES);
}

static void pack_pairs(const tdm_pack *p, int r) {
	size_t at = packed_row(p, r), pairs = ((size_t)p->columns + 1) / 2, base = (size_t)r * (size_t)p->columns;
	uint16_t *to = (uint16_t *)p->panels + (at / TDM_LANES * pairs * TDM_LANES + at % TDM_LANES) * 2;
	for (size_t k = 0; k < (size_t)p->columns; k++)
		to[k / 2 * TDM_LANES * 2 + k % 2] = tdm_bf16(element(p->source, p->type, base + k));
}

static void pack_quads(const tdm_pack *p, int r) {
	size_t at = packed_row(p, r), lane = at % TDM_LANES, columns = (size_t)p->columns, base = (size_t)r * columns;
	size_t groups = (columns + TDM_GROUP - 1) / TDM_GROUP;
	uint8_t *to = (uint8_t *)p->panels + at / TDM_LANES * groups * TDM_GROUP_BYTES;
	for (size_t first = 0; first < columns; first += TDM_GROUP, to += TDM_GROUP_BYTES) {
		size_t n = columns - first < TDM_GROUP ? columns - first : TDM_GROUP;
		float x[TDM_GROUP], reciprocal;
		uint32_t largest = 0;
		for (size_t k = 0; k < n; k++) {
			x[k] = tdm_widen(tdm_bf16(element(p->source, p->type, base + first + k)));
			uint32_t magnitude = tdm_bits(x[k]) & 0x7fffffffu; // ordered as the numbers are, NaN last
			largest = magnitude > largest ? magnitude : largest;
		}
		float scale = tdm_scale(tdm_float(largest), &reciprocal);
		memcpy(to + lane * sizeof scale, &scale, sizeof scale);
		int8_t *values = (int8_t *)to + TDM_LANES * sizeof scale;
		for (size_t k = 0; k < n && reciprocal != 0; k++)
			values[(k / 4 * TDM_LANES + lane) * 4 + k % 4] = tdm_int8(x[k], reciprocal);
	}
}

static void pack_codes(const tdm_pack *p, int r) {
	size_t at = packed_row(p, r), lane = at % TDM_LANES, columns = (size_t)p->columns, base = (size_t)r * columns;
	size_t groups = (columns + TDM_GROUP - 1) / TDM_GROUP;
	uint8_t *to = (uint8_t *)p->panels + at / TDM_LANES * groups * TDM_INT4_BYTES;
	for (size_t first = 0; first < columns; first += TDM_INT4_GROUP) {
		size_t n = columns - first < TDM_INT4_GROUP ? columns - first : TDM_INT4_GROUP, part = first % TDM_GROUP;
		uint8_t *group = to + first / TDM_GROUP * TDM_INT4_BYTES, *bytes = group + TDM_INT4_SCALES_BYTES;
		uint8_t codes[TDM_INT4_GROUP];
		float x[TDM_INT4_GROUP] = {0};
		uint32_t largest = 0;
		for (size_t k = 0; k < n; k++) {
			x[k] = tdm_widen(tdm_bf16(element(p->source, p->type, base + first + k)));
			uint32_t magnitude = tdm_bits(x[k]) & 0x7fffffffu;
			largest = magnitude > largest ? magnitude : largest;
		}
		uint16_t scale = tdm_int4_group(codes, x, tdm_float(largest));
		memcpy(group + (part / TDM_INT4_GROUP * TDM_LANES + lane) * sizeof scale, &scale, sizeof scale);
		for (size_t k = 0; k < TDM_INT4_GROUP; k++)
			bytes[((part + k) / 8 * TDM_LANES + lane) * 4 + k % 4] |= (uint8_t)(codes[k] << (k & 4));
	}
}

static void pack(void *argument, const tdm_team *team) {
	const tdm_pack *p = argument;
	int groups = (p->rows + TDM_LANES - 1) / TDM_LANES;
	int first = (int)((int64_t)groups * team->thread / team->threads) * TDM_LANES;
	int last = (int)((int64_t)groups * (team->thread + 1) / team->threads) * TDM_LANES;
	for (int r = first; r < last && r < p->rows; r++)
		p->pack_row(p, r);
}

void tdm_pack_matrix(tdm_pool *pool, int threads, uint16_t *panels, const uint8_t *source, int type, int rows, int columns, int row0, int step) {
	tdm_pack p = {pack_pairs, panels, source, type, rows, columns, row0, step};
	tdm_pool_run(pool, threads, pack, &p);
}

void tdm_pack_int8(tdm_pool *pool, int threads, uint8_t *panels, const uint8_t *source, int type, int rows, int columns, int row0, int step) {
	tdm_pack p = {pack_quads, panels, source, type, rows, columns, row0, step};
	tdm_pool_run(pool, threads, pack, &p);
}

void tdm_pack_int4(tdm_pool *pool, int threads, uint8_t *panels, const uint8_t *source, int type, int rows, int columns, int row0, int step) {
	tdm_pack p = {pack_codes, panels, source, type, rows, columns, row0, step};
	tdm_pool_run(pool, threads, pack, &p);
}

void tdm_to_bf16(uint16_t *out, const uint8_t *source, int type, size_t n) {
	for (size_t i = 0; i < n; i++)
		out[i] = tdm_bf16(element(source, type, i));
}
