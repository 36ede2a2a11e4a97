// Products of a whole warpgroup, four warps side by side, that run beside what its threads do
// (wgmma). Only GPUs of compute capability 9.0 have them: this is device_cuda.h for sm_90a.
//
// A thread's sums are in flight from the first tdm_wgmma on them to tdm_wgmma_end: nobody may
// touch them, which the compiler does not know. Of 64 lines and 192 columns, lane l of warp w
// has lines 16w + l/4 and 8 more, and columns 8j + 2*(l%4) and one more: sum[j] is, like
// tdm_mma's, two columns of the first line and two of the second.
#ifndef TDM_DEVICE_WGMMA_H
#define TDM_DEVICE_WGMMA_H

// Operands of assembly: the sums of four tiles of eight columns.
#define TDM_SUMS1(j) "+f"(sum[j][0]), "+f"(sum[j][1]), "+f"(sum[j][2]), "+f"(sum[j][3])
#define TDM_SUMS4(j) TDM_SUMS1(j), TDM_SUMS1(j + 1), TDM_SUMS1(j + 2), TDM_SUMS1(j + 3)
#define TDM_SUMS24 TDM_SUMS4(0), TDM_SUMS4(4), TDM_SUMS4(8), TDM_SUMS4(12), TDM_SUMS4(16), TDM_SUMS4(20)

// A tdm_mbarrier in shared memory goes through phases: one ends when so many threads have
// arrived and all bytes that they expect are there. The next one begins at once.
typedef uint64_t tdm_mbarrier;

// tdm_mbarrier_make makes one. A barrier of the block shows it to other threads.
TDM_PRIMITIVE void tdm_mbarrier_make(tdm_mbarrier *m, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1; fence.proxy.async.shared::cta;" : : "r"(tdm_shared_address(m)), "r"(arrivals) : "memory");
}

// tdm_mbarrier_arrive arrives: what the thread has read may be overwritten.
TDM_PRIMITIVE void tdm_mbarrier_arrive(tdm_mbarrier *m) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(tdm_shared_address(m)) : "memory");
}

// tdm_mbarrier_expect arrives, and expects bytes of tdm_bulk_copy.
TDM_PRIMITIVE void tdm_mbarrier_expect(tdm_mbarrier *m, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(tdm_shared_address(m)), "r"(bytes) : "memory");
}

// tdm_mbarrier_wait waits until the phase has ended that is even or odd, of which the thread
// may be at most one behind.
TDM_PRIMITIVE void tdm_mbarrier_wait(tdm_mbarrier *m, int odd) {
  asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again;}"
               :
               : "r"(tdm_shared_address(m)), "r"(odd)
               : "memory");
}

// tdm_bulk_copy begins to copy from global to shared memory, for who waits at m. All are
// multiples of 16.
TDM_PRIMITIVE void tdm_bulk_copy(void *shared, const void *global, int bytes, tdm_mbarrier *m) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(tdm_shared_address(shared)), "l"(global), "r"(bytes), "r"(tdm_shared_address(m))
               : "memory");
}

// tdm_matrix is a matrix in shared memory for tdm_wgmma: tiles of eight lines by eight k, 128
// bytes each, a line 16 bytes. It gives how many bytes two tiles are apart along K, and along
// lines. All are multiples of 16. So many bytes further on is so many sixteenths more.
TDM_PRIMITIVE uint64_t tdm_matrix(const void *first, int along_k, int along_lines) {
  return (uint64_t)(along_lines >> 4) << 32 | (uint32_t)along_k >> 4 << 16 | tdm_shared_address(first) >> 4;
}

// tdm_wgmma_begin comes before the first product of a group, when all that touched the sums
// and its lines is done.
TDM_PRIMITIVE void tdm_wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// tdm_wgmma begins to add to the warpgroup's sums, or to nothing if `add` is false, the product
// of 64 lines of a and 192 of b over 16 k, both bf16. b was brought by tdm_bulk_copy. Of a each
// warp has its 16 lines, as in tdm_mma: nobody may touch them until the product is done.
TDM_PRIMITIVE void tdm_wgmma(float (&sum)[24][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %101, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
               "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
               "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
               "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
               "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
               "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
               "}, {%96,%97,%98,%99}, %100, p, 1, 1, 0;}"
               : TDM_SUMS24
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

// tdm_wgmma_commit ends a group of products.
TDM_PRIMITIVE void tdm_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// tdm_wgmma_wait waits until at most the last group is under way: what the others read may be
// overwritten, lines of a too.
TDM_PRIMITIVE void tdm_wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }

// tdm_wgmma_end waits for all groups. Then the sums are there.
TDM_PRIMITIVE void tdm_wgmma_end(float (&sum)[24][4]) { asm volatile("wgmma.wait_group.sync.aligned 0;" : TDM_SUMS24::"memory"); }

#endif
