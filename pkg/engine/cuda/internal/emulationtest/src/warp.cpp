// What the lanes of a warp do together, and a thread's copies to shared memory.
#include "block.h"

enum { shuffle = 0x100, multiply = 0x200, transpose = 0x300, spread = 0x400 }; // and how far apart, or of which lane

std::unique_ptr<tdm_lane> *tdm_meet(tdm_lane *l, int what) {
  tdm_block *b = l->owner;
  const unsigned w = l->task.thread / 32, lane = l->task.thread % 32;
  l->what = what;
  b->met[w] |= 1u << lane;
  if (b->met[w] != ~0u) {
    tdm_yield(l);
    return nullptr;
  }
  std::unique_ptr<tdm_lane> *lanes = &b->lanes[32 * w];
  for (int i = 0; i < 32; i++)
    if (lanes[i]->what != what)
      tdm_fault("lanes of its warp wait for each other at different instructions");
  b->met[w] = 0;
  b->ready[w] = ~(1u << lane);
  return lanes;
}

uint32_t tdm_exchange(uint32_t x, int apart) {
  tdm_lane *l = tdm_here();
  if (apart < 0 || apart > 31)
    tdm_fault("a shuffle over more than a warp");
  l->value = x;
  if (std::unique_ptr<tdm_lane> *lanes = tdm_meet(l, shuffle + apart)) {
    uint32_t from[32];
    for (int i = 0; i < 32; i++)
      from[i] = lanes[i]->value;
    for (int i = 0; i < 32; i++)
      lanes[i]->value = from[i ^ apart];
  }
  return l->value;
}

uint32_t tdm_spread(uint32_t x, int lane) {
  tdm_lane *l = tdm_here();
  if (lane < 0 || lane > 31)
    tdm_fault("a shuffle over more than a warp");
  l->value = x;
  if (std::unique_ptr<tdm_lane> *lanes = tdm_meet(l, spread + lane)) {
    const uint32_t value = lanes[lane]->value;
    for (int i = 0; i < 32; i++)
      lanes[i]->value = value;
  }
  return l->value;
}

typedef float eight __attribute__((vector_size(32)));

// Wider vectors where there are some. They hold columns, each a sum by itself, and nothing
// is fused: the results are the same.
#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__)
#define TDM_WIDER __attribute__((target_clones("avx2", "default")))
#else
#define TDM_WIDER
#endif

TDM_WIDER static void multiply_rows(float (&sums)[16][8], const float (&a)[16][16], const float (&b)[16][8]) {
  for (int row = 0; row < 16; row += 4) {
    eight sum[4] = {};
    for (int k = 0; k < 16; k++) {
      eight line;
      memcpy(&line, b[k], sizeof line);
      for (int i = 0; i < 4; i++)
        sum[i] += a[row + i][k] * line;
    }
    memcpy(sums[row], sum, sizeof sum);
  }
}

void tdm_multiply_rows(float (&sums)[16][8], const float (&a)[16][16], const float (&b)[16][8]) { multiply_rows(sums, a, b); }

float tdm_low(uint32_t pair) {
  const uint32_t bits = pair << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// The sum of sixteen products is added to what is there. How a GPU rounds within is its
// own matter; that nothing but the sixteen pairs and the number there counts is not.
static void multiply_tiles(std::unique_ptr<tdm_lane> *lanes) {
  float a[16][16], b[16][8], sums[16][8];
  for (int i = 0; i < 32; i++) {
    const tdm_lane *l = lanes[i].get();
    const int group = i / 4, pair = 2 * (i % 4);
    for (int part = 0; part < 4; part++) {
      float *at = &a[group + part % 2 * 8][pair + part / 2 * 8];
      at[0] = tdm_low(l->a[part]);
      at[1] = tdm_high_half(l->a[part]);
    }
    for (int half = 0; half < 2; half++) {
      b[pair + 8 * half][group] = tdm_low(l->b[half]);
      b[pair + 8 * half + 1][group] = tdm_high_half(l->b[half]);
    }
  }
  multiply_rows(sums, a, b);
  for (int i = 0; i < 32; i++) {
    float *sum = lanes[i]->sum;
    const int group = i / 4, pair = 2 * (i % 4);
    sum[0] += sums[group][pair];
    sum[1] += sums[group][pair + 1];
    sum[2] += sums[group + 8][pair];
    sum[3] += sums[group + 8][pair + 1];
  }
}

void tdm_multiply(float *sum, const uint32_t *a, const uint32_t *b) {
  tdm_lane *l = tdm_here();
  l->sum = sum;
  l->a = a;
  l->b = b;
  if (std::unique_ptr<tdm_lane> *lanes = tdm_meet(l, multiply))
    multiply_tiles(lanes);
}

void tdm_check_shared(const void *p, unsigned bytes) {
  const uintptr_t at = (uintptr_t)p, begin = (uintptr_t)tdm_self->shared;
  if (at % bytes != 0)
    tdm_fault(bytes == 16  ? "an address in shared memory is not a multiple of 16"
              : bytes == 8 ? "an address in shared memory is not a multiple of 8"
                           : "an address in shared memory is not a multiple of 4");
  if (at < begin || at + bytes > begin + tdm_self->shared_bytes)
    tdm_fault("an address is not in shared memory");
}

void tdm_check_global(const void *p, unsigned bytes) {
  const uintptr_t at = (uintptr_t)p, begin = (uintptr_t)tdm_self->shared;
  if (at % bytes != 0)
    tdm_fault(bytes == 16 ? "an address in global memory is not a multiple of 16" : "an address in global memory is not a multiple of 8");
  if (at + bytes > begin && at < begin + tdm_self->shared_bytes)
    tdm_fault("an address is not in global memory");
}

void tdm_transpose(uint32_t *tiles, const void *row) {
  tdm_lane *l = tdm_here();
  tdm_check_shared(row, 16);
  l->tiles = tiles;
  if (std::unique_ptr<tdm_lane> *lanes = tdm_meet(l, transpose)) {
    uint16_t rows[4][8][8];
    for (int i = 0; i < 32; i++)
      memcpy(rows[i / 8][i % 8], lanes[i]->tiles, 16);
    for (int i = 0; i < 32; i++) {
      for (int tile = 0; tile < 4; tile++)
        lanes[i]->tiles[tile] = rows[tile][2 * (i % 4)][i / 4] | (uint32_t)rows[tile][2 * (i % 4) + 1][i / 4] << 16;
    }
  }
}

// hide notes that wgmma may not read what a copy wrote, or that it may.
static void hide(const tdm_lane *l, const tdm_copy &c, bool hidden) {
  const size_t at = (size_t)((uint8_t *)c.shared - l->task.shared) / 8;
  for (size_t i = 0; i < c.bytes / 8; i++)
    l->owner->hidden[at + i] = hidden;
}

void tdm_copy_begin(const tdm_copy &c) {
  tdm_lane *l = tdm_here();
  tdm_check_shared(c.shared, c.bytes);
  if ((uintptr_t)c.global % c.bytes != 0 || c.real) // of what is not read it does not matter where it is
    tdm_check_global(c.global, c.bytes);
  l->copies.push_back(c);
  hide(l, c, true);
}

void tdm_copy_group() {
  tdm_lane *l = tdm_here();
  l->groups.push_back(l->copies.size());
}

const tdm_copy *tdm_copy_next(int groups) {
  tdm_lane *l = tdm_here();
  const size_t done = l->groups.size() > (size_t)groups ? l->groups[l->groups.size() - 1 - (size_t)groups] : 0;
  return l->taken < done ? &l->copies[l->taken++] : nullptr;
}

void tdm_copy_show() {
  tdm_lane *l = tdm_here();
  for (; l->shown < l->taken; l->shown++)
    hide(l, l->copies[l->shown], false);
}
