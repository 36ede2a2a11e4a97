// Tasks that take turns on one thread of the system, each with a stack of its own.
#ifndef TDM_FIBERS_H
#define TDM_FIBERS_H

#include <stddef.h>

struct tdm_fiber {
  void *at = nullptr;     // stack pointer while it does not run
  char *stack = nullptr;  // null: the thread's own
  size_t bytes = 0;       // of it, from which on it is in use downwards
  void *fake = nullptr;   // of AddressSanitizer
  void *thread = nullptr; // of ThreadSanitizer
};

// tdm_fiber_new gives a fiber its stack, tdm_fiber_free takes it.
void tdm_fiber_new(tdm_fiber *f);
void tdm_fiber_free(tdm_fiber *f);

// tdm_fiber_begin makes the fiber begin at `run` when it is next switched to. run must
// not return: it leaves by tdm_fiber_leave.
void tdm_fiber_begin(tdm_fiber *f, void (*run)());

// tdm_fiber_here fills in a fiber for the thread that calls.
void tdm_fiber_here(tdm_fiber *f);

// tdm_fiber_switch goes on in `to`, and returns when somebody switches back.
void tdm_fiber_switch(tdm_fiber *from, tdm_fiber *to);

// tdm_fiber_arrived must be the first call of a fiber that begins.
void tdm_fiber_arrived();

// tdm_fiber_leave is a switch that nobody comes back from.
[[noreturn]] void tdm_fiber_leave(tdm_fiber *from, tdm_fiber *to);

// What tells ThreadSanitizer that all before a release happened before what follows the
// acquire. Nothing without it.
void tdm_release(void *at);
void tdm_acquire(void *at);

#endif
