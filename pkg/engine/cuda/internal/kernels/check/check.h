// Kernels against plain loops in double, and against each other for equal bits.
#ifndef TDM_CHECK_H
#define TDM_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "../tdm_launch.h"
#include "../../emulationtest/src/emulation.h"

// random_source is xorshift64*.
struct random_source {
  uint64_t state;
  explicit random_source(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u | 1) {}
  uint32_t bits() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)(state * 0x2545f4914f6cdd1du >> 32);
  }
  int below(int n) { return (int)(bits() % (uint32_t)n); }
  int between(int least, int most) { return least + below(most - least + 1); }
  float number() { return (float)bits() * 0x1p-31f - 1.0f; } // [-1, 1]
};

static inline float wide(uint16_t h) {
  const uint32_t u = (uint32_t)h << 16;
  float x;
  memcpy(&x, &u, 4);
  return x;
}

static inline uint16_t narrow(float x) { return (uint16_t)tdm_half(x); }

// memory is device memory: exactly as large as asked, aligned to 256 bytes, and on the
// heap, where AddressSanitizer guards both ends.
template <class T> struct memory {
  T *at = nullptr;
  size_t length = 0;
  explicit memory(size_t n, int fill = 0xff) : length(n) {
    void *p = nullptr;
    if (posix_memalign(&p, 256, n * sizeof(T) + (n == 0)) != 0)
      abort();
    at = (T *)p;
    memset(p, fill, n * sizeof(T));
  }
  memory(memory &&other) : at(other.at), length(other.length) { other.at = nullptr; }
  memory(const memory &) = delete;
  memory &operator=(const memory &) = delete;
  ~memory() { free(at); }
  T &operator[](size_t i) { return at[i]; }
};

extern bool small; // shapes for sanitizers
extern int rounds; // how often kinds of shapes are drawn that take long
extern int failures;

// fail counts, and prints the first few.
void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// launch runs a kernel, or fails.
template <class A> void launch(const char *kernel, unsigned x, unsigned y, unsigned threads, unsigned shared, const A &args) {
  const unsigned grid[3] = {x, y, 1}, block[3] = {threads, 1, 1};
  char error[512];
  if (tdm_emulate(kernel, grid, block, shared, &args, error, sizeof error) != 0)
    fail("%s", error);
}

// near fails unless got is within `limit` of want.
void near(const char *what, double got, double want, double limit);

// weights is what products have them as.
enum class weights { bf16, int8, fp8 };

// suffix is what the names of its kernels end in.
static inline const char *suffix(weights kind) {
  return kind == weights::bf16 ? "" : kind == weights::int8 ? "_int8" : "_fp8";
}

// value_of is the value of a code of 8 bits. NaN of e4m3 is 480, as in the kernels.
double value_of(weights kind, uint8_t code);

// deferred is memory for what a norm of rows leaves to the products behind it, exactly as
// large as they may use.
struct deferred {
  int rows, width, sums, lds, ld;
  memory<float> weight, squares, roots;
  memory<uint16_t> scaled;
  float eps = 1e-5f;
  deferred(random_source &r, int rows, int width);
  tdm_deferred args(int row = 0);
  double root(int row); // of squares, in double
};

// sum_of_squares is what squares are of the elements from `from` on, in a row of width: those
// 8 apart first, then 4, 2, 1.
float sum_of_squares(const float *row, int from, int width);
// fp8_place is where a dimension's code is among those of its token.
static inline int fp8_place(int dimension) {
  const int places[] = {0, 2, 1, 3};
  return dimension - dimension % 4 + places[dimension % 4];
}

// slice_bytes is one layer of a block of keys and values.
static inline int64_t slice_bytes(bool fp8, int kv_heads, int block_tokens, int stride) {
  return 2LL * kv_heads * block_tokens * (fp8 ? stride + 1 : 2 * stride);
}

static inline int padded(int n, int to) { return (n + to - 1) / to * to; }

void check_fp8();
void check_rows();
void check_draws();
void check_weights();
void check_products();
void check_heads_products();
void check_attention();
void check_strictness();

#endif
