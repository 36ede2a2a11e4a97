// A block as the emulation keeps it.
#ifndef TDM_BLOCK_H
#define TDM_BLOCK_H

#include <memory>
#include <vector>

#include "emulation.h"
#include "fibers.h"

// tdm_copy is 16 bytes on their way.
struct tdm_copy {
  void *shared;
  const void *global;
  bool real;
};

struct tdm_block;

// tdm_lane is a thread of a block.
struct tdm_lane {
  tdm_task task; // first, so that tdm_self is its lane
  tdm_fiber fiber;
  tdm_block *owner;

  // What it brings to its warp, and where the result goes.
  int what; // compared among the lanes
  uint32_t value;
  float *sum;
  const uint32_t *a, *b;
  uint32_t *tiles;

  std::vector<tdm_copy> copies; // of the block's life
  std::vector<size_t> groups;   // where in copies each ends
  size_t taken;                 // copies that have been done
};

// tdm_block is the block that one thread of the system runs.
struct tdm_block {
  tdm_fiber main;
  std::vector<std::unique_ptr<tdm_lane>> lanes;
  unsigned threads, warps;
  void (*run)(const void *);
  const void *args;
  uint8_t *shared;
  unsigned shared_bytes;

  unsigned warp;           // whose lanes have their turn
  unsigned ready[32];      // lanes that can go on, by warp
  unsigned met[32];        // lanes that wait for their warp
  unsigned waiting, ended; // threads at the barrier, threads that are done
  unsigned phase;          // which of the two barriers in turn is next
  uint64_t random;
  char begun, over, barrier[2]; // for tdm_release and tdm_acquire
  char fault[256];              // empty: none
};

static inline tdm_lane *tdm_here() { return (tdm_lane *)tdm_self; }

// tdm_yield gives the turn to another lane. Who waits for something has noted that
// before; who goes on is marked ready by what it waited for.
void tdm_yield(tdm_lane *l);

#endif
