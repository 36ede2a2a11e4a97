// Launches and blocks: which thread of a block goes on, and when none can. warp.cpp has
// what warps do together.
#include "block.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <thread>

thread_local tdm_task *tdm_self;

static tdm_kernel_entry *kernels;
static std::atomic<uint64_t> order{1};

tdm_kernel_entry::tdm_kernel_entry(const char *name, size_t args, void (*run)(const void *))
    : name(name), args(args), run(run), next(kernels) {
  kernels = this;
}

static const tdm_kernel_entry *find(const char *name) {
  for (const tdm_kernel_entry *k = kernels; k != nullptr; k = k->next)
    if (strcmp(k->name, name) == 0)
      return k;
  return nullptr;
}

const size_t *tdm_emulated_args(const char *kernel) {
  const tdm_kernel_entry *k = find(kernel);
  return k == nullptr ? nullptr : &k->args;
}

void tdm_emulate_order(uint64_t seed) { order = 2 * seed + 1; }

static unsigned random_bits(tdm_block *b) {
  b->random ^= b->random << 13;
  b->random ^= b->random >> 7;
  b->random ^= b->random << 17;
  return (unsigned)(b->random >> 32);
}

static void note(tdm_block *b, const char *what) {
  if (b->fault[0] == 0)
    snprintf(b->fault, sizeof b->fault, "%s", what);
}

// next is the lane that goes on, or null when the block is over, with a fault or without.
static tdm_lane *next(tdm_block *b) {
  if (b->fault[0] != 0)
    return nullptr;
  if (b->ready[b->warp] == 0) {
    if (b->waiting == b->threads) {
      b->waiting = 0;
      b->phase ^= 1;
      std::fill_n(b->ready, b->warps, ~0u);
    }
    const unsigned first = random_bits(b) % b->warps;
    unsigned w = first;
    while (b->ready[w] == 0) {
      w = (w + 1) % b->warps;
      if (w != first)
        continue;
      if (b->ended < b->threads) {
        char text[160];
        snprintf(text, sizeof text,
                 "nothing can go on: of %u threads %u have ended, %u wait at a barrier, and the others at an mbarrier or for lanes of their warp",
                 b->threads, b->ended, b->waiting);
        note(b, text);
      }
      return nullptr;
    }
    b->warp = w;
  }
  const unsigned turn = random_bits(b) % 32, ready = b->ready[b->warp];
  const unsigned turned = ready >> turn | (turn == 0 ? 0 : ready << (32 - turn));
  const unsigned lane = ((unsigned)__builtin_ctz(turned) + turn) % 32;
  b->ready[b->warp] &= ~(1u << lane);
  return b->lanes[32 * b->warp + lane].get();
}

void tdm_yield(tdm_lane *l) {
  tdm_lane *n = next(l->owner);
  if (n == l)
    return;
  if (n != nullptr) {
    tdm_self = &n->task;
    tdm_fiber_switch(&l->fiber, &n->fiber);
    return;
  }
  tdm_fiber_leave(&l->fiber, &l->owner->main);
}

void tdm_fault(const char *what) {
  tdm_lane *l = tdm_here();
  char text[200];
  snprintf(text, sizeof text, "thread %u of block %u,%u: %s", l->task.thread, l->task.block[0], l->task.block[1], what);
  note(l->owner, text);
  tdm_fiber_leave(&l->fiber, &l->owner->main);
}

void tdm_wait_block() {
  tdm_lane *l = tdm_here();
  tdm_block *b = l->owner;
  const unsigned phase = b->phase;
  b->waiting++;
  tdm_release(&b->barrier[phase]);
  tdm_yield(l);
  tdm_acquire(&b->barrier[phase]);
}

static void lane_main() {
  tdm_fiber_arrived();
  tdm_lane *l = tdm_here();
  tdm_block *b = l->owner;
  tdm_acquire(&b->begun);
  b->run(b->args);
  if (!l->task.awaited)
    tdm_fault("it ended without having waited for the launches before its own");
  if (l->taken < l->copies.size())
    tdm_fault("it ended with copies under way that it never waited for");
  if (l->multiplied < l->asked.size())
    tdm_fault("it ended with products of its warpgroup that it never waited for");
  tdm_release(&b->over);
  b->ended++;
  tdm_lane *n = next(b);
  tdm_self = n == nullptr ? nullptr : &n->task;
  tdm_fiber_leave(&l->fiber, n == nullptr ? &b->main : &n->fiber);
}

static const size_t guard = 256;

// run_block runs one block, whose shared memory it fills with NaNs before and whose
// guard bytes it looks at after.
static void run_block(tdm_block *b, unsigned x, unsigned y, unsigned width) {
  memset(b->shared, 0xff, b->shared_bytes);
#ifndef TDM_ASAN
  memset(b->shared + b->shared_bytes, 0xa5, guard);
#endif
  b->waiting = b->ended = b->phase = b->warp = 0;
  std::fill_n(b->ready, b->warps, ~0u);
  std::fill_n(b->met, b->warps, 0u);
  b->mbarriers.clear();
  b->brought.assign(b->shared_bytes / 16 + 1, {});
  b->wide.assign((b->threads + 127) / 128, {});
  for (unsigned i = 0; i < b->threads; i++) {
    tdm_lane *l = b->lanes[i].get();
    if (l->fiber.stack == nullptr)
      tdm_fiber_new(&l->fiber);
    l->task = {i, {x, y}, width, b->shared, b->shared_bytes, false};
    l->copies.clear();
    l->groups.clear();
    l->taken = 0;
    l->seen.clear();
    l->asked.clear();
    l->lines.clear();
    l->wide_groups.clear();
    l->multiplied = 0;
    l->wide_begun = false;
    l->wide_sum = nullptr;
    tdm_fiber_begin(&l->fiber, lane_main);
  }
  tdm_release(&b->begun);
  tdm_lane *first = next(b);
  tdm_self = &first->task;
  tdm_fiber_switch(&b->main, &first->fiber);
  tdm_self = nullptr;
  tdm_acquire(&b->over);
#ifndef TDM_ASAN
  for (size_t i = 0; i < guard; i++)
    if (b->shared[b->shared_bytes + i] != 0xa5)
      note(b, "a block wrote past its shared memory");
#endif
  for (unsigned i = 0; i < b->threads; i++)
    if (b->lanes[i]->asked.size() != b->wide[i / 128].size())
      note(b, "a thread took no part in a product of its warpgroup");
  for (const tdm_phases &m : b->mbarriers)
    if (!m.copies.empty())
      note(b, "a block ended with bulk copies under way that it never waited for");
  if (b->fault[0] != 0) { // stacks that nobody will go back to
    for (auto &l : b->lanes)
      tdm_fiber_free(&l->fiber);
  }
}

struct launch {
  const tdm_kernel_entry *kernel;
  const void *args;
  unsigned x, y, threads, shared_bytes;
  std::atomic<uint64_t> taken{0};
  std::atomic<bool> failed{false};
};

// work runs blocks of the launch until none is left.
static void work(launch *l, tdm_block *b, uint64_t seed) {
  tdm_fiber_here(&b->main);
  b->threads = l->threads;
  b->warps = l->threads / 32;
  while (b->lanes.size() < l->threads) {
    b->lanes.emplace_back(new tdm_lane());
    b->lanes.back()->owner = b;
  }
  b->run = l->kernel->run;
  b->args = l->args;
  b->fault[0] = 0;
  void *shared = nullptr;
  b->shared_bytes = l->shared_bytes;
#ifdef TDM_ASAN
  const size_t bytes = std::max<size_t>(l->shared_bytes, 1);
#else
  const size_t bytes = l->shared_bytes + guard;
#endif
  if (posix_memalign(&shared, 128, bytes) != 0) {
    note(b, "no memory for a block's shared memory");
    l->failed = true;
    return;
  }
  b->shared = (uint8_t *)shared;
  const uint64_t total = (uint64_t)l->x * l->y;
  for (uint64_t n; (n = l->taken++) < total && !l->failed;) {
    const uint64_t at = seed & 2 ? total - 1 - n : n;
    b->random = (seed + at) * 0x9e3779b97f4a7c15u | 1;
    run_block(b, (unsigned)(at % l->x), (unsigned)(at / l->x), l->x);
    if (b->fault[0] != 0)
      l->failed = true;
  }
  free(shared);
}

int tdm_emulate(const char *kernel, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                const void *args, char *error, size_t error_size) {
  static std::mutex one;
  static tdm_block blocks[2];
  const std::lock_guard<std::mutex> alone(one);
  launch l;
  l.kernel = find(kernel);
  const char *wrong = nullptr;
  if (l.kernel == nullptr)
    wrong = "no kernel has this name";
  else if (grid[0] == 0 || grid[1] == 0 || grid[1] > 65535 || grid[2] != 1)
    wrong = "a grid is of 1 to 65535 rows of blocks, in one layer";
  else if (block[0] == 0 || block[0] > 1024 || block[0] % 32 != 0 || block[1] != 1 || block[2] != 1)
    wrong = "a block is of whole warps, at most 32, in one row";
  if (wrong != nullptr) {
    snprintf(error, error_size, "%s: %s", kernel, wrong);
    return -1;
  }
  l.args = args;
  l.x = grid[0];
  l.y = grid[1];
  l.threads = block[0];
  l.shared_bytes = shared_bytes;
  const uint64_t seed = order.fetch_add(2);
  blocks[1].fault[0] = 0;
  if ((uint64_t)l.x * l.y > 1) {
    std::thread second(work, &l, &blocks[1], seed);
    work(&l, &blocks[0], seed);
    second.join();
  } else {
    work(&l, &blocks[0], seed);
  }
  for (const tdm_block &b : blocks) {
    if (b.fault[0] != 0) {
      snprintf(error, error_size, "%s: %s", kernel, b.fault);
      return -1;
    }
  }
  return 0;
}
