// A GPU's threads on a CPU: what kernels/device.h needs, for kernels compiled as C++ with
// `-include emulation.h`. A block's threads are tasks that take turns on one thread of the
// system, in an order that changes from block to block, and that really wait at barriers
// and for their warp. Blocks run on two threads of the system.
//
// What it is strict about, an error each instead of a hang or a lucky result:
//   - a thread that ends, or waits elsewhere, while others wait at a barrier
//   - a shuffle, mma.sync or ldmatrix that not all lanes of the warp take part in, and a wgmma
//     that not all warps of the warpgroup do, in the same order
//   - copies to shared memory that are misaligned, out of it, or never waited for, or whose
//     source is no global memory, or misaligned, even where nothing is read
//   - reads by instructions of one kind of memory that are misaligned or of another kind
//   - a wgmma of what no bulk copy brought, or of one that its threads have not waited for, or
//     whose lines change under it, or that nobody waited for
//   - a bulk copy of other bytes than an mbarrier expects, and more arrivals than it has
//   - a block that writes past its shared memory
//   - a thread that ends without having waited for the launches before its own
// Shared memory is exactly what the launch asks for, and is filled with NaNs before each
// block. An asynchronous copy fills its target with NaNs at once and brings the data only
// when it is waited for, so that use before and after both show. So do the sums of a wgmma,
// which reads shared memory only then.
#ifndef TDM_EMULATION_H
#define TDM_EMULATION_H

#define TDM_EMULATION 1

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define TDM_KERNEL(threads, blocks) extern "C" void
#define TDM_UNROLL
#define TDM_PRIMITIVE static inline __attribute__((always_inline))

extern "C" {

// tdm_emulate runs a kernel over a grid, to its end. args is its struct. It returns 0, or
// -1 with a line of text in error. Calls from several threads take turns.
int tdm_emulate(const char *kernel, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                const void *args, char *error, size_t error_size);

// tdm_emulated_args points to the size of a kernel's struct, or is null if no kernel has
// that name.
const size_t *tdm_emulated_args(const char *kernel);

// tdm_emulate_order chooses another order of threads for the launches that follow.
void tdm_emulate_order(uint64_t seed);

}

// tdm_kernel_entry makes a kernel known. One a kernel, for the life of the process.
struct tdm_kernel_entry {
  const char *name;
  size_t args;
  void (*run)(const void *args);
  tdm_kernel_entry *next;
  tdm_kernel_entry(const char *name, size_t args, void (*run)(const void *));
};

#define TDM_KNOWN(kernel, type)                                                      \
  extern "C" void kernel(const type a);                                              \
  static tdm_kernel_entry kernel##_entry(#kernel, sizeof(type),                      \
                                         [](const void *a) { kernel(*(const type *)a); });

// tdm_task is what a thread of the block sees of itself.
struct tdm_task {
  unsigned thread, block[2], grid;
  uint8_t *shared;
  unsigned shared_bytes;
  bool awaited; // the launches before this one
};

// tdm_copy is some bytes on their way.
struct tdm_copy {
  void *shared;
  const void *global;
  unsigned bytes;
  bool real; // else zeros
};

// tdm_operands is what a lane reads for its warp of a product of a warpgroup: six of 192
// lines of b.
struct tdm_operands {
  uint8_t b[6][2][16];
};

// A tdm_mbarrier is only where it is: what it is to do the block knows.
typedef uint64_t tdm_mbarrier;

extern thread_local tdm_task *tdm_self;

[[noreturn]] void tdm_fault(const char *what); // ends the launch with an error
void tdm_wait_block();
void tdm_wait_warp();
uint32_t tdm_exchange(uint32_t x, int apart);
uint32_t tdm_spread(uint32_t x, int lane);
void tdm_multiply(float *sum, const uint32_t *a, const uint32_t *b);
void tdm_transpose(uint32_t *tiles, const void *row);
void tdm_check_shared(const void *p, unsigned bytes); // that a multiple of bytes, and as many there, are shared memory
void tdm_check_global(const void *p, unsigned bytes); // that they are not
void tdm_copy_begin(const tdm_copy &copy);
void tdm_copy_group();
// tdm_copy_next takes the oldest copy of a group older than the last `groups`, or null.
const tdm_copy *tdm_copy_next(int groups);
void tdm_mbarrier_make(tdm_mbarrier *m, int arrivals);
void tdm_mbarrier_arrive(tdm_mbarrier *m);
void tdm_mbarrier_expect(tdm_mbarrier *m, int bytes);
void tdm_bulk_begin(const tdm_copy &copy, tdm_mbarrier *m);
void tdm_bulk_begun(tdm_mbarrier *m); // what was there is overwritten
// tdm_mbarrier_ended waits until a phase has ended, or all that it lacks is its copies. Then it
// is false, and tdm_bulk_next takes those, up to null, which ends the phase.
bool tdm_mbarrier_ended(tdm_mbarrier *m, int odd);
bool tdm_bulk_next(tdm_mbarrier *m, tdm_copy *copy);
void tdm_wgmma_begin();
void tdm_wgmma_ask(float *sum, const uint32_t *a, uint64_t b, bool add);
void tdm_wgmma_commit();
// tdm_wgmma_next is where the lane's operands are of the oldest product of a group older than
// the last `groups`, which tdm_wgmma_multiply then does. False: there is none.
bool tdm_wgmma_next(int groups, const uint8_t *(*b)[6][2]);
void tdm_wgmma_multiply(const tdm_operands &operands);

TDM_PRIMITIVE uint8_t *tdm_shared() { return tdm_self->shared; }
TDM_PRIMITIVE int tdm_thread() { return (int)tdm_self->thread; }
TDM_PRIMITIVE int tdm_block_x() { return (int)tdm_self->block[0]; }
TDM_PRIMITIVE int tdm_block_y() { return (int)tdm_self->block[1]; }
TDM_PRIMITIVE int tdm_grid_x() { return (int)tdm_self->grid; }
TDM_PRIMITIVE void tdm_barrier() { tdm_wait_block(); }
TDM_PRIMITIVE void tdm_warp_barrier() { tdm_wait_warp(); }
TDM_PRIMITIVE void tdm_let_next() {}
TDM_PRIMITIVE void tdm_await_earlier() { tdm_self->awaited = true; }
TDM_PRIMITIVE int tdm_shuffle(int x, int apart) { return (int)tdm_exchange((uint32_t)x, apart); }
TDM_PRIMITIVE float tdm_shuffle(float x, int apart) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits = tdm_exchange(bits, apart);
  memcpy(&x, &bits, 4);
  return x;
}

TDM_PRIMITIVE uint64_t tdm_shuffle(uint64_t x, int apart) {
  const uint32_t high = tdm_exchange((uint32_t)(x >> 32), apart);
  return (uint64_t)high << 32 | tdm_exchange((uint32_t)x, apart);
}

TDM_PRIMITIVE float tdm_of_lane(float x, int lane) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits = tdm_spread(bits, lane);
  memcpy(&x, &bits, 4);
  return x;
}

TDM_PRIMITIVE float tdm_of_four(float x, int which) {
  float of = x;
  for (int apart = 1; apart < 4; apart++) {
    const float other = tdm_shuffle(x, apart);
    if ((tdm_thread() % 4 ^ apart) == which)
      of = other;
  }
  return of;
}

TDM_PRIMITIVE uint64_t tdm_high(uint64_t x, uint64_t y) { return (uint64_t)((unsigned __int128)x * y >> 64); }
TDM_PRIMITIVE uint32_t tdm_add_shared(uint32_t *p, uint32_t x) {
  tdm_check_shared(p, 4);
  return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
}

TDM_PRIMITIVE uint32_t tdm_zero(int x) { return (uint32_t)x >> 31; }

TDM_PRIMITIVE uint32_t tdm_half(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u)
    return 0x7fff; // the GPU's NaN
  return (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}

TDM_PRIMITIVE uint32_t tdm_pair(float low, float high) { return tdm_half(low) | tdm_half(high) << 16; }

// It is an error if the result has to be rounded: a GPU rounds once, and this would twice.
TDM_PRIMITIVE uint32_t tdm_fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t pair = 0;
  for (int i = 0; i < 32; i += 16) {
    float x[3];
    const uint32_t bits[3] = {a >> i << 16, b >> i << 16, c >> i << 16};
    memcpy(x, bits, 12);
    const float exact = __builtin_fmaf(x[0], x[1], x[2]);
    uint32_t result;
    memcpy(&result, &exact, 4);
    if ((result & 0xffff) != 0)
      tdm_fault("a sum of a pair is no bf16");
    pair |= result >> 16 << i;
  }
  return pair;
}

TDM_PRIMITIVE void tdm_mma(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
  tdm_multiply(sum, a, b);
}

TDM_PRIMITIVE void tdm_transposed(uint32_t (&tiles)[4], const void *row) {
  uint32_t seen[4]; // a read that the sanitizers know of
  memcpy(seen, row, 16);
  memcpy(tiles, seen, 16);
  tdm_transpose(tiles, row);
}

TDM_PRIMITIVE uint32_t __attribute__((vector_size(16))) tdm_shared16(const void *p) {
  tdm_check_shared(p, 16);
  return *(const uint32_t __attribute__((vector_size(16))) *)p;
}

TDM_PRIMITIVE void tdm_shared8(uint32_t (&words)[2], const void *p) {
  tdm_check_shared(p, 8);
  memcpy(words, p, 8);
}

TDM_PRIMITIVE void tdm_copy16(void *shared, const void *global, bool real) {
  tdm_copy_begin({shared, global, 16, real});
  memset(shared, 0xff, 16);
}

TDM_PRIMITIVE void tdm_stream_copy16(void *shared, const void *global) { tdm_copy16(shared, global, true); }

TDM_PRIMITIVE void tdm_copy_commit() { tdm_copy_group(); }

template <int groups> TDM_PRIMITIVE void tdm_copy_wait() {
  while (const tdm_copy *c = tdm_copy_next(groups)) {
    if (c->real)
      memcpy(c->shared, c->global, c->bytes);
    else
      memset(c->shared, 0, c->bytes);
  }
}

TDM_PRIMITIVE void tdm_bulk_copy(void *shared, const void *global, int bytes, tdm_mbarrier *m) {
  tdm_bulk_begin({shared, global, (unsigned)bytes, true}, m);
  memset(shared, 0xff, (size_t)bytes);
  tdm_bulk_begun(m);
}

TDM_PRIMITIVE void tdm_mbarrier_wait(tdm_mbarrier *m, int odd) {
  while (!tdm_mbarrier_ended(m, odd)) {
    tdm_copy c;
    while (tdm_bulk_next(m, &c))
      memcpy(c.shared, c.global, c.bytes);
  }
}

TDM_PRIMITIVE uint64_t tdm_matrix(const void *first, int along_k, int along_lines) {
  const uintptr_t at = (uintptr_t)first - (uintptr_t)tdm_self->shared;
  if (at % 16 != 0 || at >= tdm_self->shared_bytes || along_k % 16 != 0 || along_lines % 16 != 0)
    tdm_fault("a matrix is not in shared memory, or not at multiples of 16");
  return (uint64_t)(along_lines >> 4) << 32 | (uint32_t)along_k >> 4 << 16 | at >> 4;
}

TDM_PRIMITIVE void tdm_wgmma(float (&sum)[24][4], const uint32_t (&a)[4], uint64_t b, bool add) { tdm_wgmma_ask(sum[0], a, b, add); }

template <int groups> TDM_PRIMITIVE void tdm_wgmma_finish() {
  const uint8_t *b[6][2];
  while (tdm_wgmma_next(groups, &b)) {
    tdm_operands seen; // a read that the sanitizers know of
    for (int i = 0; i < 12; i++)
      memcpy(seen.b[i / 2][i % 2], b[i / 2][i % 2], 16);
    tdm_wgmma_multiply(seen);
  }
}

TDM_PRIMITIVE void tdm_wgmma_wait() { tdm_wgmma_finish<1>(); }
TDM_PRIMITIVE void tdm_wgmma_end(float (&)[24][4]) { tdm_wgmma_finish<0>(); }

#endif
