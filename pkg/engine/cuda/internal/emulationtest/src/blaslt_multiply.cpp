// What a product of cuBLASLt computes.

#include "blaslt.h"

#include <cstring>

using namespace fake;

static float wide(uint16_t half) {
	const uint32_t bits = (uint32_t)half << 16;
	float x;
	std::memcpy(&x, &bits, 4);
	return x;
}

static uint16_t narrow(float x) {
	uint32_t bits;
	std::memcpy(&bits, &x, 4);
	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return 0x7fff;
	return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// unpacked is a bf16 matrix of columns as float32, a column after the other.
static std::vector<float> unpacked(uintptr_t at, const cublasLtMatrixLayoutStruct &layout) {
	const uint16_t *from = reinterpret_cast<const uint16_t *>(at);
	std::vector<float> out;
	out.reserve(layout.rows * layout.columns);
	for (uint64_t column = 0; column < layout.columns; column++)
		for (uint64_t row = 0; row < layout.rows; row++)
			out.push_back(wide(from[column * (uint64_t)layout.ld + row]));
	return out;
}

static float dot(const float *x, const float *y, uint64_t n) {
	float chains[16] = {};
	uint64_t i = 0;
	for (; i + 16 <= n; i += 16)
		for (int j = 0; j < 16; j++)
			chains[j] += x[i + j] * y[i + j];
	for (; i < n; i++)
		chains[i % 16] += x[i] * y[i];
	float sum = 0;
	for (const float chain : chains)
		sum += chain;
	return sum;
}

void fake::multiply(const Multiplication &m) {
	const Form &f = m.form;
	const std::vector<float> a = unpacked(m.a, f.a), b = unpacked(m.b, f.b);
	const uint64_t k = f.a.rows;
	for (uint64_t column = 0; column < f.d.columns; column++) {
		for (uint64_t row = 0; row < f.d.rows; row++) {
			const uint64_t at = column * (uint64_t)f.d.ld + row;
			float *wide_out = reinterpret_cast<float *>(m.d) + at;
			uint16_t *narrow_out = reinterpret_cast<uint16_t *>(m.d) + at;
			float sum = m.alpha * dot(&a[row * k], &b[column * k], k);
			if (m.beta != 0)
				sum += m.beta * (f.d.type == CUDA_R_16BF ? wide(*narrow_out) : *wide_out);
			if (f.d.type == CUDA_R_16BF)
				*narrow_out = narrow(sum);
			else
				*wide_out = sum;
		}
	}
}

size_t fake::span(const cublasLtMatrixLayoutStruct &layout) {
	const size_t element = layout.type == CUDA_R_16BF ? 2 : 4;
	return ((size_t)(layout.columns - 1) * (size_t)layout.ld + layout.rows) * element;
}
