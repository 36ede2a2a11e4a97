// The sum of a tensor core. An H200 was seen to follow this rule, by mma.sync and by wgmma
// alike (docs/decisions/0014-cuda-arithmetic.md):
//
//   1. The sixteen products are exact. A product's exponent is the sum of its factors'
//      exponents, so that its significand is in [1, 4).
//   2. Products and accumulator are cut, toward zero, to multiples of 2^(top - 25), where top
//      is the largest of their exponents. Zeros have no exponent.
//   3. They are added, all seventeen at once and exactly.
//   4. The sum is cut, toward zero, to float32.
//
// What was not seen, and is only likely: denormals are kept, a sum of zeros is +0, a sum past
// float32 is infinite, and infinities and NaN are those of IEEE 754.
#include "mma.h"

#include <math.h>
#include <string.h>

namespace {

float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

// below is how many bits behind the largest exponent count.
const int below = 25;

// number is significand * 2^(exponent - 23).
struct number {
  bool negative;
  int exponent;
  uint64_t significand;
};

number unpack(uint32_t bits) {
  const int field = bits >> 23 & 0xff;
  const uint32_t fraction = bits & 0x7fffff;
  return {bits >> 31 != 0, (field ? field : 1) - 127, field ? fraction | 0x800000 : fraction};
}

number product(uint16_t a, uint16_t b) {
  const number x = unpack((uint32_t)a << 16), y = unpack((uint32_t)b << 16);
  return {x.negative != y.negative, x.exponent + y.exponent, x.significand * y.significand >> 23};
}

// not_finite is the sum where an infinity or a NaN takes part.
float not_finite(const uint16_t *a, const uint16_t *b, float c) {
  for (int k = 0; k < 16; k++) { // in double, so that finite factors have a finite product
    const double x = from_bits((uint32_t)a[k] << 16), y = from_bits((uint32_t)b[k] << 16);
    if (!isfinite(x * y))
      c = (float)((isfinite(c) ? 0 : c) + x * y);
  }
  return isnan(c) ? from_bits(0x7fffffff) : c;
}

} // namespace

float tdm_dot16(const uint16_t *a, const uint16_t *b, float c) {
  bool finite = isfinite(c);
  number terms[17];
  for (int k = 0; k < 16; k++) {
    finite &= (a[k] & 0x7f80) != 0x7f80 && (b[k] & 0x7f80) != 0x7f80;
    terms[k] = product(a[k], b[k]);
  }
  terms[16] = unpack(bits_of(c));
  if (!finite)
    return not_finite(a, b, c);

  int top = -1000;
  for (const number &n : terms)
    if (n.significand != 0 && n.exponent > top)
      top = n.exponent;
  int64_t sum = 0; // in units of 2^unit
  const int unit = top - below;
  for (const number &n : terms) {
    const int shift = top - n.exponent;
    const int64_t cut = n.significand == 0 || shift > 60 ? 0 : (int64_t)(n.significand << (below - 23) >> shift);
    sum += n.negative ? -cut : cut;
  }
  if (sum == 0)
    return 0;

  uint64_t magnitude = sum < 0 ? 0 - (uint64_t)sum : (uint64_t)sum;
  const int length = 64 - __builtin_clzll(magnitude);
  int excess = length - 24; // bits that a float32 has no place for
  if (excess < -149 - unit)
    excess = -149 - unit;
  if (excess > 0)
    magnitude = excess < 64 ? magnitude >> excess << excess : 0;
  const float size = (float)ldexp((double)magnitude, unit);
  return sum < 0 ? -size : size;
}

// The same for tiles, eight sums at a time, by float32 where that is exact.

namespace {

typedef uint16_t halves __attribute__((vector_size(16)));
typedef float floats __attribute__((vector_size(32)));
typedef int32_t ints __attribute__((vector_size(32)));
typedef double doubles __attribute__((vector_size(64)));
typedef int64_t longs __attribute__((vector_size(64)));

// These exponents, the second of infinities and NaN, are so far from all others that a sum
// of two shows whether one of them is in it: with a zero it is below `none`.
const int of_zero = -1000, of_infinity = 3000, none = -500;

// Within [-farthest, farthest], what counts of a product is exact in float32, and so are the
// powers of two that it is multiplied by.
const int farthest = 100;

} // namespace

// Inlined, they use the vectors of the function that calls them.
#define TDM_INLINE_OPERATION static inline __attribute__((always_inline))

template <class To, class From> TDM_INLINE_OPERATION void copy_bits(To &to, const From &from) {
  static_assert(sizeof to == sizeof from, "another size");
  memcpy(&to, &from, sizeof to);
}

TDM_INLINE_OPERATION void exponents_of(ints &exponents, const floats &x) {
  ints bits;
  copy_bits(bits, x);
  bits &= 0x7fffffff;
  const ints field = bits >> 23;
  exponents = field - 127 + (field == 0 ? 1 : 0);
  exponents = bits == 0 ? of_zero : exponents;
  exponents = field == 0xff ? of_infinity : exponents;
}

// values_of are eight bf16 and their exponents.
TDM_INLINE_OPERATION void values_of(floats &values, ints &exponents, const uint16_t *from) {
  halves some;
  memcpy(&some, from, sizeof some);
  const ints bits = __builtin_convertvector(some, ints) << 16;
  copy_bits(values, bits);
  exponents_of(exponents, values);
}

// Wider vectors where there are some.
#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__)
#define TDM_WIDER __attribute__((target_clones("avx2", "default")))
#else
#define TDM_WIDER
#endif

// A conversion to an integer cuts toward zero. Sixteen products of less than 4 * 2^below fit
// into 32 bits, but not always the accumulator with them. What is computed for hard sums,
// with exponents that are too far from 0, is not used.
TDM_WIDER void tdm_multiply_tile(float (*sums)[8], const uint16_t (*a)[16], const uint16_t (*b)[8]) {
  floats columns[16];
  ints exponents[16];
  for (int k = 0; k < 16; k++)
    values_of(columns[k], exponents[k], b[k]);
  for (int row = 0; row < 16; row++) {
    floats line[2], c, scale, unit;
    ints line_exponents[2], top;
    for (int half = 0; half < 2; half++)
      values_of(line[half], line_exponents[half], a[row] + 8 * half);
    memcpy(&c, sums[row], sizeof c);
    exponents_of(top, c);
    for (int k = 0; k < 16; k++) {
      const ints exponent = exponents[k] + line_exponents[k / 8][k % 8];
      top = exponent > top ? exponent : top;
    }
    const ints hard = (top > farthest) | ((top < -farthest) & (top > none));
    top = (hard | (top < none)) ? 0 : top;
    copy_bits(scale, (below + 127 - top) << 23);
    copy_bits(unit, (top - below + 127) << 23);
    ints products = {};
    for (int k = 0; k < 16; k++)
      products += __builtin_convertvector(columns[k] * line[k / 8][k % 8] * scale, ints);
    const ints accumulator = __builtin_convertvector(c * scale, ints);
    const doubles sum = __builtin_convertvector(products, doubles) + __builtin_convertvector(accumulator, doubles);
    longs bits;
    copy_bits(bits, sum);
    bits &= ~(((int64_t)1 << 29) - 1); // those that float32 has no place for
    doubles cut;
    copy_bits(cut, bits);
    const floats result = __builtin_convertvector(cut, floats) * unit;
    for (int column = 0; column < 8; column++) {
      if (hard[column]) {
        uint16_t line_of_b[16];
        for (int k = 0; k < 16; k++)
          line_of_b[k] = b[k][column];
        sums[row][column] = tdm_dot16(a[row], line_of_b, c[column]);
      } else {
        sums[row][column] = result[column];
      }
    }
  }
}
