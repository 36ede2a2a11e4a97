// Weights of 8 bits: every code, and rows of bf16 made into codes, against what is plainly
// the nearest.
#include "check.h"

#include "../weights.h"

double value_of(weights kind, uint8_t code) {
  if (kind == weights::int8)
    return (int8_t)code;
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double size = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
  return code & 0x80 ? -size : size;
}

namespace {

// check_codes: each byte becomes its value, whatever the bits around it are.
void check_codes() {
  random_source r(5);
  for (int n = 0; n < 65536; n++) {
    const uint8_t low = (uint8_t)n, high = (uint8_t)(n >> 8);
    const uint32_t bytes = low | (uint32_t)high << 16 | (r.bits() & 0xff00ff00u);
    for (weights kind : {weights::int8, weights::fp8}) {
      const uint32_t pair = kind == weights::int8 ? tdm_int8_pair(bytes) : tdm_fp8_pair(bytes);
      if ((double)wide((uint16_t)pair) != value_of(kind, low) || (double)wide((uint16_t)(pair >> 16)) != value_of(kind, high))
        fail("%s of %02x and %02x: %08x", suffix(kind), low, high, pair);
    }
  }
  bool seen[TDM_K] = {};
  for (int byte = 0; byte < TDM_K; byte++)
    seen[tdm_byte_k(byte)] = true;
  for (int k = 0; k < TDM_K; k++)
    if (!seen[k])
      fail("no byte of a line is k %d", k);
}

// nearest is the code of a row's element.
uint8_t nearest(weights kind, float x) {
  if (kind == weights::int8)
    return (uint8_t)(int8_t)nearbyint((double)x); // to even
  int best = 0;
  for (int code = 1; code < 0x7f; code++) {
    const double off = fabs(fabs((double)x) - value_of(kind, (uint8_t)code)), least = fabs(fabs((double)x) - value_of(kind, (uint8_t)best));
    if (off < least || (off == least && code % 2 == 0))
      best = code;
  }
  return (uint8_t)(best | (std::signbit(x) ? 0x80 : 0));
}

// fill makes a row of some kind of numbers.
void fill(random_source &r, uint16_t *row, int k, int what) {
  for (int i = 0; i < k; i++) {
    switch (what) {
    case 0: row[i] = narrow(r.number()); break;
    case 1: row[i] = narrow(ldexpf(r.number(), r.between(-30, 10))); break; // of many sizes
    case 2: row[i] = (uint16_t)(r.bits() & 0x807f); break;                  // denormals
    case 3: row[i] = narrow((float)r.between(-254, 254) * 0.5f); break;     // halves: ties, where the largest is 127
    case 4: row[i] = r.below(9) ? narrow(r.number()) : (uint16_t)(0x7f00 | r.below(0x80)); break; // large ones
    case 5: row[i] = (uint16_t)(r.below(2) << 15); break;                   // zeros
    case 6: row[i] = r.below(k) ? narrow(r.number()) : 0x7f80; break;
    default: row[i] = r.below(k) ? narrow(r.number()) : 0xffc0;
    }
  }
  if (what == 0)
    row[r.below(k)] = narrow(1.75f); // 448 times a power of two: ties
  if (what == 3)
    row[r.below(k)] = narrow(127.0f);
  if (what >= 6)
    row[r.below(k)] = what == 6 ? 0xff80 : 0x7fc1;
}

void check_rows_of(random_source &r, weights kind, int k) {
  const int rows = 8, ld = padded(k, TDM_K);
  memory<uint16_t> from((size_t)rows * ld, 0);
  memory<uint8_t> to((size_t)rows * ld);
  memory<float> scales(rows);
  for (int row = 0; row < rows; row++)
    fill(r, &from[(size_t)row * ld], k, row);
  tdm_quantize_args args = {};
  args.from = from.at;
  args.to = to.at;
  args.scales = scales.at;
  args.ld = ld;
  const std::string kernel = std::string("tdm_quantize") + suffix(kind);
  launch(kernel.c_str(), rows, 1, TDM_ROW_THREADS, TDM_QUANTIZE_SHARED, args);
  for (int row = 0; row < rows; row++) {
    float most = 0;
    bool real = true;
    for (int i = 0; i < ld; i++) {
      const float x = wide(from[(size_t)row * ld + i]);
      real = real && std::isfinite(x);
      most = fmaxf(most, fabsf(x));
    }
    const float scale = most / (kind == weights::int8 ? 127.0f : 448.0f);
    if (real ? scales[row] != scale : std::isfinite(scales[row]))
      fail("%s: the scale of row %d is %g, not %g", kernel.c_str(), row, scales[row], scale);
    for (int i = 0; i < ld; i++) {
      const float x = wide(from[(size_t)row * ld + i / TDM_K * TDM_K + tdm_byte_k(i % TDM_K)]);
      const uint8_t want = real && scale != 0 ? nearest(kind, x / scale) : 0, got = to[(size_t)row * ld + i];
      if (got != want)
        fail("%s: %g of row %d, scale %g, is %02x, not %02x", kernel.c_str(), x, row, scale, got, want);
    }
  }
}

} // namespace

void check_weights() {
  check_codes();
  random_source r(6);
  for (int n = 0; n < (small ? 2 : 20); n++)
    for (weights kind : {weights::int8, weights::fp8})
      check_rows_of(r, kind, r.between(1, small ? 500 : 5000));
}
