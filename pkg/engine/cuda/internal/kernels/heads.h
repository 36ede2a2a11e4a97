// What becomes of the heads of a row: rotary embedding, and where they go.
#ifndef TDM_HEADS_H
#define TDM_HEADS_H

#include "device.h"

// tdm_slice is the layer's slice of the page that a slot is in.
TDM_INLINE uint8_t *tdm_slice(const tdm_heads_args &a, int slot) {
  return a.pages + (int64_t)(slot / a.block_tokens) * a.page_bytes + a.layer_bytes;
}

// tdm_head_place is where head h of a row goes: queries to q, keys and values to the page
// of the row's slot, where those are bf16. Heads are the queries', then the keys', then the values'.
TDM_INLINE uint16_t *tdm_head_place(const tdm_heads_args &a, int row, int slot, int h) {
  if (h < a.heads)
    return a.q + (int64_t)row * a.ldq + h * a.stride;
  // Keys of all KV heads come before values of all, so that h counts through both.
  return (uint16_t *)tdm_slice(a, slot) + ((int64_t)(h - a.heads) * a.block_tokens + slot % a.block_tokens) * a.stride;
}

// tdm_turn is a cosine and a sine.
struct tdm_turn {
  float c, s;
};

// tdm_turn_of is what turns dimensions i and i + size/2 at a position.
TDM_INLINE tdm_turn tdm_turn_of(const tdm_heads_args &a, int position, int i) {
  const int64_t at = (int64_t)position * (a.size / 2) + i;
  return {a.cos[at], a.sin[at]};
}

// tdm_rotate turns two dimensions of a query or a key.
TDM_INLINE void tdm_rotate(tdm_turn turn, float &low, float &high) {
  const float x = low, y = high;
  low = x * turn.c - y * turn.s;
  high = y * turn.c + x * turn.s;
}

#endif
