// What numbers become in fp8, and the scales of keys and values, against their definitions.
#include "check.h"

#include "../fp8.h"

namespace {

// nearest is the definition: the nearest code, of two the even one.
int nearest(double x) {
  int best = 0;
  for (int code = 1; code < 0x7f; code++) {
    const double off = fabs(value_of(weights::fp8, (uint8_t)code) - fabs(x)), least = fabs(value_of(weights::fp8, (uint8_t)best) - fabs(x));
    if (off < least || (off == least && code % 2 == 0))
      best = code;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

void check_encoding(random_source &r) {
  const auto hold = [](float x) {
    if (tdm_fp8(x) != nearest(x))
      fail("%.9g is coded %02x, want %02x", x, tdm_fp8(x), nearest(x));
  };
  for (int code = 0; code < 0x7f; code++)
    for (int sign = -1; sign <= 1; sign += 2) {
      const float x = (float)value_of(weights::fp8, (uint8_t)code), half = (x + (float)value_of(weights::fp8, (uint8_t)(code + 1))) / 2;
      hold((float)sign * x);
      if (code == 0x7e)
        continue; // nothing is above
      for (float near : {half, nextafterf(half, 0), nextafterf(half, 1000)})
        hold((float)sign * near);
    }
  for (int n = 0; n < 20000; n++)
    hold(ldexpf(448 * r.number(), -r.below(24)));
  hold(0x1p-149f);
  hold(449); // which is nearer than the next code would be, if there were one
  if (tdm_fp8(1e30f) != 0x7e || tdm_fp8(-1e30f) != 0xfe)
    fail("what is too large is coded %02x and %02x", tdm_fp8(1e30f), tdm_fp8(-1e30f));
}

// The scale is the least power of two that brings the largest magnitude to 448 or less.
void check_exponent(random_source &r) {
  const auto hold = [](float largest) {
    const int exponent = tdm_fp8_exponent(tdm_bits(largest));
    const double scale = ldexp(1, exponent - 127);
    if (largest < 0x1p-100f ? exponent != 0 : !(largest <= 448 * scale && largest > 224 * scale && tdm_fp8_scale((uint32_t)exponent) == scale))
      fail("the scale of %.9g has the exponent %d", largest, exponent);
  };
  for (int e = -149; e < 128; e++)
    for (float x : {ldexpf(1, e), ldexpf(1.75f, e), ldexpf(1 + fabsf(r.number()), e)})
      for (float near : {x, nextafterf(x, 0), nextafterf(x, INFINITY)})
        if (near < INFINITY)
          hold(near);
  hold(0);
  for (uint32_t bits : {0x7f800000u, 0x7f800001u, 0x7fffffffu})
    if (tdm_fp8_exponent(bits) != 255 || !std::isinf(tdm_fp8_scale(255)))
      fail("what is infinite or NaN has the exponent %d", tdm_fp8_exponent(bits));
}

} // namespace

void check_fp8() {
  random_source r(7);
  check_encoding(r);
  check_exponent(r);
}
