// What the kernels need of a GPU, each as one small function, and the arithmetic that
// they share. Compiled by clang as CUDA without any header of a toolkit, or as C++ for
// the emulation, which brings functions of the same names (emulation.h).
#ifndef TDM_DEVICE_H
#define TDM_DEVICE_H

#include "tdm_launch.h"

// 16 bytes: eight bf16, or four float32.
typedef uint32_t tdm_quad __attribute__((vector_size(16)));
typedef float tdm_floats __attribute__((vector_size(16)));

#ifndef TDM_EMULATION
#include "device_cuda.h"
#endif

#define TDM_METHOD inline __device__ __attribute__((always_inline))
#define TDM_INLINE static TDM_METHOD

// tdm_load16 reads 16 bytes at an address that is a multiple of 16.
TDM_INLINE tdm_quad tdm_load16(const void *p) { return *(const tdm_quad *)p; }

// tdm_begin is where a kernel begins that reads nothing but what earlier launches leave.
TDM_INLINE void tdm_begin() {
  tdm_let_next();
  tdm_await_earlier();
}

TDM_INLINE uint32_t tdm_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
TDM_INLINE float tdm_float(uint32_t u) { return __builtin_bit_cast(float, u); }

// tdm_wide is the value of a bf16.
TDM_INLINE float tdm_wide(uint16_t h) { return tdm_float((uint32_t)h << 16); }

// tdm_bf16 rounds to the nearest bf16, ties to even.
TDM_INLINE uint16_t tdm_bf16(float x) { return (uint16_t)tdm_pair(x, 0.0f); }

TDM_INLINE float tdm_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// tdm_root is the square root, correctly rounded.
TDM_INLINE float tdm_root(float x) { return __builtin_sqrtf(x); }

// tdm_larger is the larger one, or the one that is a number.
TDM_INLINE float tdm_larger(float x, float y) { return __builtin_fmaxf(x, y); }

TDM_INLINE int tdm_least(int a, int b) { return a < b ? a : b; }
TDM_INLINE int tdm_most(int a, int b) { return a > b ? a : b; }

// tdm_exp_down is exp of what is not above 87: Cephes' expf (S. L. Moshier) as in decision
// 0002, with 0 below -87. NaN stays NaN.
TDM_INLINE float tdm_exp_down(float x) {
  const float shift = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
  const float t = tdm_fma(x, 1.44269504088896341f, shift);
  const float n = t - shift;
  float r = tdm_fma(n, -0.693359375f, x);
  r = tdm_fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = tdm_fma(p, r, 1.3981999507e-3f);
  p = tdm_fma(p, r, 8.3334519073e-3f);
  p = tdm_fma(p, r, 4.1665795894e-2f);
  p = tdm_fma(p, r, 1.6666665459e-1f);
  p = tdm_fma(p, r, 5.0000001201e-1f);
  float y = tdm_fma(p, r * r, r);
  y = y + 1.0f;
  y = y * tdm_float((tdm_bits(t) + 127u) << 23);
  return x < -87.0f ? 0.0f : y;
}

// tdm_exp is exp, with the value at 87 for all above.
TDM_INLINE float tdm_exp(float x) { return tdm_exp_down(x > 87.0f ? 87.0f : x); }

// tdm_silu is x / (1 + exp(-x)), the quotient by way of the reciprocal.
TDM_INLINE float tdm_silu(float x) { return x * (1.0f / (1.0f + tdm_exp(-x))); }

// tdm_warp_sum adds the lanes' values: lane l and l^16, then 8, 4, 2, 1 apart. Every lane
// has the same bits, since the sum of two is the same either way round.
TDM_INLINE float tdm_warp_sum(float x) {
  for (int apart = 16; apart > 0; apart /= 2)
    x = x + tdm_shuffle(x, apart);
  return x;
}

// tdm_int8_pair is two bf16 of the signed bytes at bits 0 and 16; other bits do not matter.
// Exact: 128 and the low seven bits is a bf16 with those as its fraction, and 128, or 256
// where the sign is set, comes off again.
TDM_INLINE uint32_t tdm_int8_pair(uint32_t bytes) {
  const uint32_t one = 0x3f803f80u, biased = (bytes & 0x007f007fu) | 0x43004300u;
  const uint32_t bias = (bytes & 0x00800080u) | 0x43004300u;
  return tdm_fma_pair(bias, one ^ 0x80008000u, biased);
}

// tdm_fp8 is the e4m3 nearest to x, ties to even; 448, the largest, for what is more.
TDM_INLINE uint8_t tdm_fp8(float x) {
  const uint32_t bits = tdm_bits(x), magnitude = bits & 0x7fffffffu;
  // From 2^-6 on a code is the exponent and three bits of the fraction. Below, steps are
  // 2^-9, which is what those of float32 are from 2^14 on.
  const uint32_t code = magnitude >= 0x3c800000u ? ((magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20) - (120 << 3)
                                                 : tdm_bits(tdm_float(magnitude) + 16384.0f) - tdm_bits(16384.0f);
  return (uint8_t)(tdm_least((int)code, 0x7e) | (bits >> 24 & 0x80));
}

// tdm_fp8_pair is two bf16 of the e4m3 bytes at bits 0 and 16; other bits do not matter.
// Exact: the bits go where bf16 has its own, which is the number by 2^120 too small, as a
// denormal of e4m3 is one of bf16 then. NaN becomes 480.
TDM_INLINE uint32_t tdm_fp8_pair(uint32_t bytes) {
  const uint32_t up = 0x7b807b80u, minus_zero = 0x80008000u;
  return tdm_fma_pair((bytes << 8 & 0x80008000u) | (bytes << 4 & 0x07f007f0u), up, minus_zero);
}

// tdm_mma2 multiplies twice: the 16 bytes that a lane holds of its rows are two pairs of
// pairs along K, the first for the first product and the second for the second. a0 is of
// row lane/4 of A and a1 of row lane/4 + 8, b of column lane/4 of B.
TDM_INLINE void tdm_mma2(float (&sum)[4], tdm_quad a0, tdm_quad a1, tdm_quad b) {
  tdm_mma(sum, a0[0], a1[0], a0[1], a1[1], b[0], b[1]);
  tdm_mma(sum, a0[2], a1[2], a0[3], a1[3], b[2], b[3]);
}

#endif
