// fp8: what numbers become codes of e4m3 as, and keys and values in them, with a power of two
// for each token of a head by which they are multiplied. See tdm_cuda.h for where those are
// in a slice.
#ifndef TDM_FP8_H
#define TDM_FP8_H

#include "heads.h"

// tdm_fp8_exponent is the scale of a head whose largest magnitude has these bits, as
// float32's exponent: the least power of two of which that is at most 448 times. 0, for the
// scale 0, below 2^-100; 255, for infinity, if an element is infinite or NaN.
TDM_INLINE uint8_t tdm_fp8_exponent(uint32_t largest) {
  if (largest < 27u << 23)
    return 0;
  if (largest >= 255u << 23)
    return 255;
  return (uint8_t)(((largest + 0x1fffffu) >> 23) - 8); // 448 is 1.75 * 2^8
}

// tdm_fp8_scale is the scale that an exponent stands for.
TDM_INLINE float tdm_fp8_scale(uint32_t exponent) { return tdm_float(exponent << 23); }

// tdm_fp8_place is where a dimension is among those of its token: of each four the second
// and the third change places, so that tdm_fp8_pair gives neighbours.
TDM_INLINE int tdm_fp8_place(int dimension) {
  return (dimension & ~3) | (dimension & 1) << 1 | (dimension >> 1 & 1);
}

// tdm_fp8_wide is eight bf16, in order, of the eight codes of as many dimensions.
TDM_INLINE tdm_quad tdm_fp8_wide(const uint32_t (&codes)[2]) {
  return tdm_quad{tdm_fp8_pair(codes[0]), tdm_fp8_pair(codes[0] >> 8),
                  tdm_fp8_pair(codes[1]), tdm_fp8_pair(codes[1] >> 8)};
}

// tdm_write_fp8 writes a head of keys or values of one token, of which a lane has
// dimensions lane + 32 j and as many after half of them; the rest of both is 0. head counts
// through keys and then values of all KV heads.
template <int pairs>
TDM_INLINE void tdm_write_fp8(const tdm_heads_args &a, int slot, int head, const float (&low)[pairs], const float (&high)[pairs]) {
  const int lane = tdm_thread() % 32, half = a.size / 2, line = head * a.block_tokens + slot % a.block_tokens;
  uint8_t *slice = tdm_slice(a, slot);
  int largest = 0; // of bits, which are in the order of magnitudes, NaN above all
  TDM_UNROLL
  for (int j = 0; j < pairs; j++) {
    largest = tdm_most(largest, (int)(tdm_bits(low[j]) & 0x7fffffffu));
    largest = tdm_most(largest, (int)(tdm_bits(high[j]) & 0x7fffffffu));
  }
  for (int apart = 16; apart > 0; apart /= 2)
    largest = tdm_most(largest, tdm_shuffle(largest, apart));
  const uint8_t exponent = tdm_fp8_exponent((uint32_t)largest);
  const bool coded = exponent != 0 && exponent != 255;
  const float inverse = tdm_float((uint32_t)(254 - exponent) << 23); // exact, as what it is multiplied by
  uint8_t *to = slice + (int64_t)line * a.stride;
  TDM_UNROLL
  for (int j = 0; j < pairs; j++) {
    const int i = lane + 32 * j;
    if (i >= half)
      continue;
    to[tdm_fp8_place(i)] = coded ? tdm_fp8(low[j] * inverse) : 0;
    to[tdm_fp8_place(half + i)] = coded ? tdm_fp8(high[j] * inverse) : 0;
  }
  for (int i = a.size + lane; i < a.stride; i += 32)
    to[tdm_fp8_place(i)] = 0;
  if (lane == 0)
    slice[(int64_t)2 * a.kv_heads * a.block_tokens * a.stride + line] = exponent;
}

#endif
