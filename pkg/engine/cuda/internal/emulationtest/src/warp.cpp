// What the lanes of a warp do together, and a thread's copies to shared memory.
#include "block.h"

#include "mma.h"

enum { wait = 0x600, shuffle = 0x100, multiply = 0x200, transpose = 0x300, spread = 0x400 }; // and how far apart, or of which lane

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

void tdm_wait_warp() {
  tdm_lane *l = tdm_here();
  char *order = &l->owner->of_warp[l->task.thread / 32];
  tdm_release(order);
  tdm_meet(l, wait);
  tdm_acquire(order);
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

// Which element of which tile a lane has is the layout of mma.sync.m16n8k16.
static void multiply_tiles(std::unique_ptr<tdm_lane> *lanes) {
  uint16_t a[16][16], b[16][8];
  float sums[16][8];
  for (int i = 0; i < 32; i++) {
    const tdm_lane *l = lanes[i].get();
    const int group = i / 4, pair = 2 * (i % 4);
    for (int part = 0; part < 4; part++)
      memcpy(&a[group + part % 2 * 8][pair + part / 2 * 8], &l->a[part], 4);
    for (int half = 0; half < 2; half++) {
      b[pair + half * 8][group] = (uint16_t)l->b[half];
      b[pair + half * 8 + 1][group] = (uint16_t)(l->b[half] >> 16);
      memcpy(&sums[group + half * 8][pair], l->sum + 2 * half, 8);
    }
  }
  tdm_multiply_tile(sums, a, b);
  for (int i = 0; i < 32; i++)
    for (int half = 0; half < 2; half++)
      memcpy(lanes[i]->sum + 2 * half, &sums[i / 4 + half * 8][2 * (i % 4)], 8);
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

void tdm_copy_begin(const tdm_copy &c) {
  tdm_lane *l = tdm_here();
  tdm_check_shared(c.shared, c.bytes);
  if ((uintptr_t)c.global % c.bytes != 0 || c.real) // of what is not read it does not matter where it is
    tdm_check_global(c.global, c.bytes);
  l->copies.push_back(c);
  l->owner->brought[(size_t)((uint8_t *)c.shared - l->task.shared) / 16] = {};
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
