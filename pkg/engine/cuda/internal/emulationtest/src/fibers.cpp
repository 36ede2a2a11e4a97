#include "fibers.h"

#include <atomic>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef TDM_ASAN
#include <sanitizer/asan_interface.h>
#endif
#ifdef TDM_TSAN
#include <sanitizer/tsan_interface.h>
#endif

static const size_t stack_bytes = 256 << 10, guard_bytes = 64 << 10;

// tdm_switch_stack keeps the registers that a call must keep on the stack, and the stack
// pointer in *from; then it goes on with `to`.
extern "C" void tdm_switch_stack(void **from, void *to);

#if defined(__x86_64__)
asm(R"(
.text
.globl tdm_switch_stack
.type tdm_switch_stack, @function
tdm_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tdm_switch_stack, .-tdm_switch_stack
)");
// Six registers, the address to return to, and one that nobody returns to.
static void *first_frame(char *top, void (*run)()) {
  void **at = (void **)top - 8;
  at[6] = (void *)run;
  at[7] = nullptr;
  return at;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl tdm_switch_stack
.type tdm_switch_stack, %function
tdm_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size tdm_switch_stack, .-tdm_switch_stack
)");
static void *first_frame(char *top, void (*run)()) {
  void **at = (void **)(top - 160);
  at[10] = nullptr;
  at[11] = (void *)run;
  return at;
}
#else
#error "the emulation switches stacks on amd64 and arm64"
#endif

void tdm_fiber_new(tdm_fiber *f) {
  char *pages = (char *)mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED || mprotect(pages, guard_bytes, PROT_NONE) != 0)
    abort(); // no address space for a stack: nothing else would work either
  f->stack = pages + guard_bytes;
  // Stacks are as far apart as fill a way of any cache: where they begin differs, so that
  // what is on top of them does not share its sets.
  static std::atomic<unsigned> begun;
  f->bytes = stack_bytes - begun++ % 31 * 2112;
#ifdef TDM_ASAN // what was here before may have been left in the middle of a function
  __asan_unpoison_memory_region(f->stack, stack_bytes);
#endif
#ifdef TDM_TSAN
  f->thread = __tsan_create_fiber(0);
#endif
}

void tdm_fiber_free(tdm_fiber *f) {
  if (f->stack == nullptr)
    return;
#ifdef TDM_TSAN
  __tsan_destroy_fiber(f->thread);
#endif
  munmap(f->stack - guard_bytes, guard_bytes + stack_bytes);
  *f = tdm_fiber();
}

void tdm_fiber_begin(tdm_fiber *f, void (*run)()) {
  f->fake = nullptr;
  f->at = first_frame(f->stack + f->bytes, run);
}

#ifdef TDM_ASAN
// The thread's own stack, as the sanitizer reports it to the first fiber that begins.
static thread_local const void *own_stack;
static thread_local size_t own_bytes;
#endif

void tdm_fiber_here(tdm_fiber *f) {
  *f = tdm_fiber();
#ifdef TDM_TSAN
  f->thread = __tsan_get_current_fiber();
#endif
#ifdef TDM_ASAN
  own_stack = nullptr;
#endif
}

static void tell(tdm_fiber *from, tdm_fiber *to, bool back) {
#ifdef TDM_ASAN
  __sanitizer_start_switch_fiber(back ? &from->fake : nullptr, to->stack != nullptr ? to->stack : own_stack,
                                 to->stack != nullptr ? stack_bytes : own_bytes);
#endif
#ifdef TDM_TSAN
  __tsan_switch_to_fiber(to->thread, __tsan_switch_to_fiber_no_sync);
#endif
  (void)from;
  (void)to;
  (void)back;
}

void tdm_fiber_switch(tdm_fiber *from, tdm_fiber *to) {
  tell(from, to, true);
  tdm_switch_stack(&from->at, to->at);
#ifdef TDM_ASAN
  __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

void tdm_fiber_arrived() {
#ifdef TDM_ASAN
  const void *bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (own_stack == nullptr) { // the first one comes from the thread's own
    own_stack = bottom;
    own_bytes = bytes;
  }
#endif
}

void tdm_fiber_leave(tdm_fiber *from, tdm_fiber *to) {
  tell(from, to, false);
  tdm_switch_stack(&from->at, to->at);
  abort(); // somebody switched to a fiber that had left
}

void tdm_release(void *at) {
#ifdef TDM_TSAN
  __tsan_release(at);
#else
  (void)at;
#endif
}

void tdm_acquire(void *at) {
#ifdef TDM_TSAN
  __tsan_acquire(at);
#else
  (void)at;
#endif
}
