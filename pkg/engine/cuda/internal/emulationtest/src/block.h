// A block as the emulation keeps it.
#ifndef TDM_BLOCK_H
#define TDM_BLOCK_H

#include <memory>
#include <vector>

#include "emulation.h"
#include "fibers.h"

struct tdm_block;

// tdm_wide is a product of a warpgroup: b as tdm_matrix gives it.
struct tdm_wide {
  uint64_t b;
  bool add;
  bool operator!=(const tdm_wide &o) const { return b != o.b || add != o.add; }
};

// tdm_lines is what a lane has of a, and what it was when the product began.
struct tdm_lines {
  const uint32_t *at;
  uint32_t was[4];
};

// tdm_phases is an mbarrier of a block.
struct tdm_phases {
  const tdm_mbarrier *at;
  int arrivals, left;             // of a phase; those that this one still lacks
  int64_t expected;               // bytes
  std::vector<tdm_copy> copies;   // of this phase, under way
  uint32_t waiting[32];           // lanes, by warp
  uint32_t ended;                 // phases
  char order;                     // for tdm_release and tdm_acquire
};

// tdm_brought is which bulk copy brought something: that of a phase of an mbarrier, by number
// from 1 on. 0: none.
struct tdm_brought {
  uint32_t by, phase;
};

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
  std::vector<uint32_t> seen;   // phases that it has seen the end of, by mbarrier

  std::vector<tdm_wide> asked;     // of the block's life
  std::vector<tdm_lines> lines;    // of those
  std::vector<size_t> wide_groups; // where in asked each ends
  size_t multiplied;               // products that have been done
  bool wide_begun;                 // tdm_wgmma_begin was called for this group
  float *wide_sum;                 // sums in flight, or null
  float in_flight[96];             // what they are meanwhile
  const tdm_operands *operands;    // what it read for its warp
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
  std::vector<tdm_phases> mbarriers;
  std::vector<tdm_brought> brought;        // by 16 bytes of shared memory
  std::vector<std::vector<tdm_wide>> wide; // by warpgroup: the products of its warps, which must be the same
  uint64_t random;
  char begun, over, barrier[2], of_warp[32]; // for tdm_release and tdm_acquire
  char fault[256];              // empty: none
};

static inline tdm_lane *tdm_here() { return (tdm_lane *)tdm_self; }

// tdm_yield gives the turn to another lane. Who waits for something has noted that
// before; who goes on is marked ready by what it waited for.
void tdm_yield(tdm_lane *l);

// tdm_meet waits until all lanes of the warp are here for the same thing. It returns them to
// the last one, which is to do what they came for, and null to the others, for which it
// has been done.
std::unique_ptr<tdm_lane> *tdm_meet(tdm_lane *l, int what);

#endif
