// What weights are kept as, and how a lane makes bf16 of what it has of a row's block of K:
// k = 8t..8t+7 and 32+8t..32+8t+7 of it (t = lane%4), a half each.
//
// Of bf16 a half is 16 bytes as they lie in the row. Of 8 bits both halves are 16 bytes
// side by side, in the order of tdm_byte_k: of four k the second and the third change places,
// so that the bytes of the first pair are the low ones of a word's two halves and those of
// the other pair the high ones.
#ifndef TDM_WEIGHTS_H
#define TDM_WEIGHTS_H

#include "device.h"

// tdm_byte_k is which k of its block a byte of a line is, 0 to TDM_K - 1.
TDM_INLINE int tdm_byte_k(int byte) {
  const int quarter = byte / 16, half = byte / 8 % 2, four = byte / 4 % 2, place = byte % 4;
  return 32 * half + 8 * quarter + 4 * four + (place / 2 | place % 2 * 2);
}

struct tdm_weights_bf16 {
  static constexpr int bytes = 2;  // of an element
  static constexpr int pieces = 2; // of 16 bytes, of a lane: 64 bytes apart in the row
  // half is eight elements as bf16.
  TDM_METHOD static tdm_quad half(const tdm_quad (&piece)[2], int half) { return piece[half]; }
};

struct tdm_weights_int8 {
  static constexpr int bytes = 1, pieces = 1;
  TDM_METHOD static tdm_quad half(const tdm_quad (&piece)[1], int half) {
    const uint32_t first = piece[0][2 * half], second = piece[0][2 * half + 1];
    return tdm_quad{tdm_int8_pair(first), tdm_int8_pair(first >> 8), tdm_int8_pair(second), tdm_int8_pair(second >> 8)};
  }
};

struct tdm_weights_fp8 {
  static constexpr int bytes = 1, pieces = 1;
  TDM_METHOD static tdm_quad half(const tdm_quad (&piece)[1], int half) {
    const uint32_t first = piece[0][2 * half], second = piece[0][2 * half + 1];
    return tdm_quad{tdm_fp8_pair(first), tdm_fp8_pair(first >> 8), tdm_fp8_pair(second), tdm_fp8_pair(second >> 8)};
  }
};

#endif
