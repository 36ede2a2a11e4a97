// That the emulation finds what it is there to find: kernels with one mistake each, and one
// without.
#include "check.h"

#include "../device.h"

struct strict_args {
  float *out;        // [threads]
  const float *in;   // [threads]
};

// The sum of two neighbours, by way of shared memory.
static void neighbours(const strict_args &a, bool barrier) {
  float *shared = (float *)tdm_shared();
  const int i = tdm_thread();
  shared[i] = a.in[i];
  if (barrier)
    tdm_barrier();
  a.out[i] = shared[i] + shared[(i + 33) % 64];
}

TDM_KERNEL(64, 1) strict_right(const strict_args a) { tdm_await_earlier(); neighbours(a, true); }
TDM_KERNEL(64, 1) strict_race(const strict_args a) { tdm_await_earlier(); neighbours(a, false); }

TDM_KERNEL(64, 1) strict_barrier(const strict_args) {
  tdm_await_earlier();
  if (tdm_thread() != 5)
    tdm_barrier();
}

TDM_KERNEL(64, 1) strict_shuffle(const strict_args a) {
  tdm_await_earlier();
  if (tdm_thread() != 40)
    a.out[tdm_thread()] = tdm_shuffle(a.in[tdm_thread()], 1);
}

TDM_KERNEL(64, 1) strict_apart(const strict_args a) {
  tdm_await_earlier();
  a.out[tdm_thread()] = tdm_shuffle(a.in[tdm_thread()], tdm_thread() < 3 ? 1 : 2);
}

TDM_KERNEL(64, 1) strict_mma(const strict_args) {
  tdm_await_earlier();
  float sum[4] = {};
  if (tdm_thread() % 32 != 31)
    tdm_mma(sum, 0, 0, 0, 0, 0, 0);
}

TDM_KERNEL(64, 1) strict_beyond(const strict_args) {
  tdm_await_earlier();
  if (tdm_thread() == 0)
    tdm_shared()[64 * 16] = 1;
}

// Copies its input by way of shared memory, 16 bytes a thread; in of 64 threads is in of
// 256 floats.
static void by_copy(const strict_args &a, bool wait, int target, int source, bool real = true) {
  tdm_floats *shared = (tdm_floats *)tdm_shared();
  const int i = tdm_thread();
  tdm_copy16((uint8_t *)(shared + i) + target, (const uint8_t *)(a.in + 4 * i) + source, real);
  tdm_copy_commit();
  if (wait)
    tdm_copy_wait<0>();
  a.out[i] = shared[i][1];
  tdm_copy_wait<0>();
}

TDM_KERNEL(64, 1) strict_copy(const strict_args a) { tdm_await_earlier(); by_copy(a, true, 0, 0); }
TDM_KERNEL(64, 1) strict_early(const strict_args a) { tdm_await_earlier(); by_copy(a, false, 0, 0); }
TDM_KERNEL(64, 1) strict_target(const strict_args a) { tdm_await_earlier(); by_copy(a, true, 4, 0); }
TDM_KERNEL(64, 1) strict_source(const strict_args a) { tdm_await_earlier(); by_copy(a, true, 0, 4); }
TDM_KERNEL(64, 1) strict_unread(const strict_args a) { tdm_await_earlier(); by_copy(a, true, 0, 4, false); }
TDM_KERNEL(64, 1) strict_outside(const strict_args a) { tdm_await_earlier(); by_copy(a, true, 16, 0); }
TDM_KERNEL(64, 1) strict_within(const strict_args) {
  tdm_copy16(tdm_shared(), tdm_shared() + 16, true);
  tdm_copy_commit();
  tdm_copy_wait<0>();
}

TDM_KERNEL(64, 1) strict_forgotten(const strict_args a) {
  tdm_await_earlier();
  tdm_copy16(tdm_shared() + 16 * tdm_thread(), a.in + 4 * tdm_thread(), true);
  tdm_copy_commit();
}

// Reads of one kind of memory.
TDM_KERNEL(64, 1) strict_shared16(const strict_args a) { tdm_await_earlier(); a.out[0] = tdm_float(tdm_shared16(a.in)[0]); }
TDM_KERNEL(64, 1) strict_past(const strict_args a) { tdm_await_earlier(); a.out[0] = tdm_float(tdm_shared16(tdm_shared() + 64 * 16)[0]); }
TDM_KERNEL(64, 1) strict_shared8(const strict_args a) {
  tdm_await_earlier();
  uint32_t words[2];
  tdm_shared8(words, tdm_shared() + 4);
  a.out[0] = tdm_float(words[0]);
}
TDM_KERNEL(64, 1) strict_sum(const strict_args a) { tdm_await_earlier(); tdm_add_shared((uint32_t *)a.out, 1); }
TDM_KERNEL(64, 1) strict_hasty(const strict_args a) { a.out[0] = a.in[0]; }

// One product of a warpgroup of the same tile all over: 32 floats of the input as 64 bf16, of
// which those at even places are 0.
enum mistake { none, copied, unawaited, fewer, more, arrival, outside, open, early, less, other, changed };

static void wide(const strict_args &a, mistake m) {
  tdm_await_earlier();
  const int i = tdm_thread();
  tdm_mbarrier *full = (tdm_mbarrier *)(tdm_shared() + 128);
  if (i == 0)
    tdm_mbarrier_make(full, 1);
  if (m == copied && i < 8)
    tdm_copy16(tdm_shared() + 16 * i, (const uint8_t *)a.in + 16 * i, true);
  tdm_copy_commit();
  tdm_copy_wait<0>();
  tdm_barrier();
  if (m != copied && i == 0) {
    tdm_mbarrier_expect(full, m == fewer ? 112 : m == more ? 144 : 128);
    tdm_bulk_copy(tdm_shared(), a.in, 128, full);
    if (m == arrival)
      tdm_mbarrier_arrive(full);
  }
  tdm_barrier();
  if (m != copied && (m != unawaited || i == 0))
    tdm_mbarrier_wait(full, 0);
  const uint64_t tile = tdm_matrix(tdm_shared(), 0, 0);
  const uint32_t word = ((const uint32_t *)a.in)[i % 32];
  uint32_t line[4] = {word, word, word, word};
  float sum[24][4] = {};
  if (m != outside)
    tdm_wgmma_begin();
  if (m != less || i != 77)
    tdm_wgmma(sum, line, tile, m == other && i / 32 == 2);
  if (m != open)
    tdm_wgmma_commit();
  if (m == changed)
    line[2] = 5;
  if (m != early)
    tdm_wgmma_end(sum);
  if (i < 64)
    a.out[i] = sum[23][0];
  tdm_wgmma_commit();
  tdm_wgmma_end(sum);
}

TDM_KERNEL(128, 1) strict_wide_right(const strict_args a) { wide(a, none); }
TDM_KERNEL(128, 1) strict_wide_copied(const strict_args a) { wide(a, copied); }
TDM_KERNEL(128, 1) strict_wide_unawaited(const strict_args a) { wide(a, unawaited); }
TDM_KERNEL(128, 1) strict_wide_fewer(const strict_args a) { wide(a, fewer); }
TDM_KERNEL(128, 1) strict_wide_more(const strict_args a) { wide(a, more); }
TDM_KERNEL(128, 1) strict_wide_arrival(const strict_args a) { wide(a, arrival); }
TDM_KERNEL(128, 1) strict_wide_outside(const strict_args a) { wide(a, outside); }
TDM_KERNEL(128, 1) strict_wide_open(const strict_args a) { wide(a, open); }
TDM_KERNEL(128, 1) strict_wide_early(const strict_args a) { wide(a, early); }
TDM_KERNEL(128, 1) strict_wide_less(const strict_args a) { wide(a, less); }
TDM_KERNEL(128, 1) strict_wide_changed(const strict_args a) { wide(a, changed); }
TDM_KERNEL(128, 1) strict_wide_other(const strict_args a) { wide(a, other); }
TDM_KERNEL(128, 1) strict_wide_forgotten(const strict_args) {
  tdm_await_earlier();
  const uint32_t line[4] = {};
  float sum[24][4] = {};
  tdm_wgmma_begin();
  tdm_wgmma(sum, line, tdm_matrix(tdm_shared(), 0, 0), false);
  tdm_wgmma_commit();
  tdm_wgmma_wait();
}
TDM_KERNEL(64, 1) strict_bulk_forgotten(const strict_args a) {
  tdm_await_earlier();
  tdm_mbarrier *full = (tdm_mbarrier *)(tdm_shared() + 128);
  if (tdm_thread() == 0) {
    tdm_mbarrier_make(full, 1);
    tdm_mbarrier_expect(full, 128);
    tdm_bulk_copy(tdm_shared(), a.in, 128, full);
  }
}

TDM_KNOWN(strict_wide_right, strict_args)
TDM_KNOWN(strict_wide_copied, strict_args)
TDM_KNOWN(strict_wide_unawaited, strict_args)
TDM_KNOWN(strict_wide_fewer, strict_args)
TDM_KNOWN(strict_wide_more, strict_args)
TDM_KNOWN(strict_wide_arrival, strict_args)
TDM_KNOWN(strict_wide_changed, strict_args)
TDM_KNOWN(strict_bulk_forgotten, strict_args)
TDM_KNOWN(strict_wide_outside, strict_args)
TDM_KNOWN(strict_wide_open, strict_args)
TDM_KNOWN(strict_wide_early, strict_args)
TDM_KNOWN(strict_wide_less, strict_args)
TDM_KNOWN(strict_wide_other, strict_args)
TDM_KNOWN(strict_wide_forgotten, strict_args)
TDM_KNOWN(strict_right, strict_args)
TDM_KNOWN(strict_race, strict_args)
TDM_KNOWN(strict_barrier, strict_args)
TDM_KNOWN(strict_shuffle, strict_args)
TDM_KNOWN(strict_apart, strict_args)
TDM_KNOWN(strict_mma, strict_args)
TDM_KNOWN(strict_beyond, strict_args)
TDM_KNOWN(strict_copy, strict_args)
TDM_KNOWN(strict_early, strict_args)
TDM_KNOWN(strict_target, strict_args)
TDM_KNOWN(strict_source, strict_args)
TDM_KNOWN(strict_unread, strict_args)
TDM_KNOWN(strict_outside, strict_args)
TDM_KNOWN(strict_within, strict_args)
TDM_KNOWN(strict_shared16, strict_args)
TDM_KNOWN(strict_past, strict_args)
TDM_KNOWN(strict_shared8, strict_args)
TDM_KNOWN(strict_sum, strict_args)
TDM_KNOWN(strict_hasty, strict_args)
TDM_KNOWN(strict_forgotten, strict_args)

namespace {

struct outcome {
  std::string error; // empty: none
  std::vector<float> out;
};

outcome run(const char *kernel, unsigned threads = 64) {
  memory<float> in(256), out(64);
  for (size_t i = 0; i < in.length; i++)
    in[i] = (float)i;
  const strict_args args = {out.at, in.at};
  const unsigned grid[3] = {1, 1, 1}, block[3] = {threads, 1, 1};
  char error[512] = "";
  const int failed = tdm_emulate(kernel, grid, block, 64 * 16, &args, error, sizeof error);
  return {failed ? error : "", std::vector<float>(out.at, out.at + out.length)};
}

void right() {
  const outcome o = run("strict_right");
  for (int i = 0; i < 64; i++)
    if (o.out[i] != (float)(i + (i + 33) % 64))
      fail("strict_right: %g at %d, '%s'", o.out[i], i, o.error.c_str());
}

#ifndef TDM_TSAN
void refused(const char *kernel, const char *part, unsigned threads = 64) {
  const outcome o = run(kernel, threads);
  if (o.error.find(part) == std::string::npos)
    fail("%s: got the error '%s', want one with '%s'", kernel, o.error.c_str(), part);
}

void mistakes() {
  refused("strict_barrier", "wait at a barrier");
  refused("strict_shuffle", "lanes of their warp");
  refused("strict_apart", "different instructions");
  refused("strict_mma", "lanes of their warp");
  refused("strict_target", "multiple of 16");
  refused("strict_source", "multiple of 16");
  refused("strict_unread", "multiple of 16");
  refused("strict_outside", "not in shared memory");
  refused("strict_within", "not in global memory");
  refused("strict_shared16", "not in shared memory");
  refused("strict_past", "not in shared memory");
  refused("strict_shared8", "multiple of 8");
  refused("strict_sum", "not in shared memory");
  refused("strict_hasty", "without having waited for the launches");
  refused("strict_forgotten", "never waited for");
  refused("strict_wide_copied", "what no bulk copy brought", 128);
  refused("strict_wide_unawaited", "have not waited for", 128);
  refused("strict_wide_fewer", "more bytes than", 128);
  refused("strict_wide_more", "nothing can go on", 128);
  refused("strict_wide_arrival", "more threads arrive", 128);
  refused("strict_wide_changed", "changed while it was under way", 128);
  refused("strict_bulk_forgotten", "never waited for");
  refused("strict_wide_outside", "does not begin a group", 128);
  refused("strict_wide_less", "of their warp", 128);
  refused("strict_wide_other", "different products", 128);
  refused("strict_wide_forgotten", "never waited for", 128);
  refused("strict_wide_right", "only a part", 64);
  refused("strict_none", "no kernel has this name");
  refused("strict_right", "whole warps", 40);
  right(); // nothing is left of the faults
#ifndef TDM_ASAN // which ends the process
  refused("strict_beyond", "wrote past its shared memory");
#endif
  bool differs = false;
  for (uint64_t seed = 0; seed < 20; seed++) {
    tdm_emulate_order(seed);
    for (float x : run("strict_race").out)
      differs |= std::isnan(x);
  }
  if (!differs)
    fail("strict_race was never seen to go wrong");
}
#endif

} // namespace

void check_strictness() {
  right();
  if (run("strict_copy").out[2] != 9)
    fail("strict_copy did not copy");
  if (!std::isnan(run("strict_early").out[2]))
    fail("strict_early read what it had not waited for");
  if (const float x = run("strict_wide_right", 128).out[0]; x != 2 * (1 + 4 + 9)) // of 0, 1, 2, 3, twice
    fail("strict_wide_right is %g", x);
  for (const char *kernel : {"strict_wide_open", "strict_wide_early"})
    if (!std::isnan(run(kernel, 128).out[0]))
      fail("%s saw sums in flight", kernel);
#ifndef TDM_TSAN // which takes threads that a fault leaves behind for racing ones
  mistakes();
#endif
}
