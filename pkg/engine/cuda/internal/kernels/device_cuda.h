// The GPU's own part of device.h: attributes, indices and instructions, for clang's CUDA
// with -nocudainc.
#ifndef TDM_DEVICE_CUDA_H
#define TDM_DEVICE_CUDA_H

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define TDM_KERNEL(threads, blocks) \
  extern "C" __global__ __attribute__((launch_bounds(threads, blocks))) void
#define TDM_PRIMITIVE static inline __device__ __attribute__((always_inline))

// TDM_UNROLL unrolls the loop that follows, so that what it indexes can be in registers.
#define TDM_UNROLL _Pragma("unroll")

extern __attribute__((shared)) __attribute__((aligned(128))) uint8_t tdm_dynamic_shared[];

// tdm_shared is the block's dynamic shared memory.
TDM_PRIMITIVE uint8_t *tdm_shared() { return tdm_dynamic_shared; }

TDM_PRIMITIVE uint32_t tdm_shared_address(const void *p) {
  return (uint32_t)(uintptr_t)(__attribute__((address_space(3))) const void *)p;
}

TDM_PRIMITIVE int tdm_thread() { return (int)__nvvm_read_ptx_sreg_tid_x(); }
TDM_PRIMITIVE int tdm_block_x() { return (int)__nvvm_read_ptx_sreg_ctaid_x(); }
TDM_PRIMITIVE int tdm_block_y() { return (int)__nvvm_read_ptx_sreg_ctaid_y(); }
TDM_PRIMITIVE int tdm_grid_x() { return (int)__nvvm_read_ptx_sreg_nctaid_x(); }

// tdm_barrier waits for all threads of the block.
TDM_PRIMITIVE void tdm_barrier() { __syncthreads(); }

// tdm_warp_barrier waits for all lanes of the warp.
TDM_PRIMITIVE void tdm_warp_barrier() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// tdm_let_next lets the next launch of the stream begin, as blocks find room. What this one
// writes the next one must not look at before tdm_await_earlier.
TDM_PRIMITIVE void tdm_let_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// tdm_await_earlier waits until all earlier launches of the stream are done, and what they
// wrote is there. Every thread calls it, also one that has nothing to do: the launches
// after this one wait for this one alone.
TDM_PRIMITIVE void tdm_await_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// tdm_shuffle is the value of the lane whose number differs in the bits of apart. All
// lanes of the warp take part.
TDM_PRIMITIVE float tdm_shuffle(float x, int apart) {
  return __nvvm_shfl_sync_bfly_f32(0xffffffffu, x, apart, 0x1f);
}
TDM_PRIMITIVE int tdm_shuffle(int x, int apart) {
  return __nvvm_shfl_sync_bfly_i32(0xffffffffu, x, apart, 0x1f);
}

TDM_PRIMITIVE uint64_t tdm_shuffle(uint64_t x, int apart) {
  return (uint64_t)(uint32_t)tdm_shuffle((int)(x >> 32), apart) << 32 | (uint32_t)tdm_shuffle((int)x, apart);
}

// tdm_of_lane is the value of a lane, the same one for all, which take part.
TDM_PRIMITIVE float tdm_of_lane(float x, int lane) { return __nvvm_shfl_sync_idx_f32(0xffffffffu, x, lane, 0x1f); }

// tdm_of_four is the value of one of the four lanes of which this is one.
TDM_PRIMITIVE float tdm_of_four(float x, int which) { return __nvvm_shfl_sync_idx_f32(0xffffffffu, x, which, 0x1c1f); }

// tdm_high is the high half of a product.
TDM_PRIMITIVE uint64_t tdm_high(uint64_t x, uint64_t y) { return __nvvm_mulhi_ull(x, y); }

// tdm_add_shared adds to a word of shared memory, and returns what was there. No two such
// additions come between each other.
TDM_PRIMITIVE uint32_t tdm_add_shared(uint32_t *p, uint32_t x) {
  uint32_t old;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(tdm_shared_address(p)), "r"(x) : "memory");
  return old;
}

// tdm_zero is 0 for a number that is not negative, which compilers do not know.
TDM_PRIMITIVE uint32_t tdm_zero(int x) {
  uint32_t zero;
  asm volatile("shr.u32 %0, %1, 31;" : "=r"(zero) : "r"(x));
  return zero;
}

// tdm_pair rounds two numbers to bf16, the first into the low half.
TDM_PRIMITIVE uint32_t tdm_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// tdm_fma_pair is a*b + c of two pairs of bf16, denormals kept. It is for what is exact.
TDM_PRIMITIVE uint32_t tdm_fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
  return pair;
}

// tdm_mma adds to a 16x8 tile of float32 the product of 16x16 and 16x8 tiles of bf16, in
// the layout of mma.sync.m16n8k16.
TDM_PRIMITIVE void tdm_mma(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// tdm_transposed loads four 8x8 tiles of bf16 from shared memory, transposed: lane l gives
// the address of row l%8 of tile l/8 and gets rows 2*(l%4) and +1 of column l/4 of each.
TDM_PRIMITIVE void tdm_transposed(uint32_t (&tiles)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(tdm_shared_address(row))
               : "memory");
}

// tdm_stream_copy16 begins to copy 16 bytes to shared memory, of which no other block will
// want any again soon. Both addresses are multiples of 16.
TDM_PRIMITIVE void tdm_stream_copy16(void *shared, const void *global) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" : : "r"(tdm_shared_address(shared)), "l"(global) : "memory");
}

// tdm_shared16 reads 16 bytes of shared memory that asynchronous copies brought.
TDM_PRIMITIVE tdm_quad tdm_shared16(const void *p) {
  uint32_t a, b, c, d;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(tdm_shared_address(p)));
  return tdm_quad{a, b, c, d};
}

// tdm_shared8 reads 8 bytes of shared memory that asynchronous copies brought.
TDM_PRIMITIVE void tdm_shared8(uint32_t (&words)[2], const void *p) {
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(tdm_shared_address(p)));
}

// tdm_copy16 begins to copy 16 bytes from global to shared memory, or zeros if `real` is
// false, which reads nothing. Both addresses are multiples of 16.
TDM_PRIMITIVE void tdm_copy16(void *shared, const void *global, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(tdm_shared_address(shared)), "l"(global), "r"(real ? 16 : 0)
               : "memory");
}

// tdm_copy_commit ends a group of copies.
TDM_PRIMITIVE void tdm_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// tdm_copy_wait waits until at most `groups` of the thread's groups are under way. What
// other threads copied is there after a barrier.
template <int groups> TDM_PRIMITIVE void tdm_copy_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(groups) : "memory");
}

#endif
