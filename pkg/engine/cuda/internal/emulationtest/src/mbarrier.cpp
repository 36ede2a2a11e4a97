// mbarriers, and bulk copies to shared memory that end at one. A copy brings its data when a
// thread waits for the phase, all else of which has come.
#include "block.h"

static tdm_phases *phases_of(const tdm_mbarrier *m) {
  for (tdm_phases &p : tdm_here()->owner->mbarriers)
    if (p.at == m)
      return &p;
  tdm_fault("nobody has made this mbarrier");
}

// lacks_copies is whether a phase lacks nothing but its copies.
static bool lacks_copies(const tdm_phases &p) {
  int64_t bytes = 0;
  for (const tdm_copy &c : p.copies)
    bytes += c.bytes;
  if (p.left == 0 && bytes > p.expected)
    tdm_fault("bulk copies bring more bytes than an mbarrier expects");
  return p.left == 0 && bytes == p.expected;
}

// wake lets those go on that wait, if there is something to do for them.
static void wake(tdm_phases *p) {
  for (unsigned warp = 0; warp < 32; warp++) {
    tdm_here()->owner->ready[warp] |= p->waiting[warp];
    p->waiting[warp] = 0;
  }
}

static void end_phase(tdm_phases *p) {
  p->ended++;
  p->left = p->arrivals;
  p->expected = 0;
  wake(p);
}

static void changed(tdm_phases *p) {
  tdm_release(&p->order);
  if (!lacks_copies(*p))
    return;
  if (p->copies.empty())
    end_phase(p);
  else
    wake(p);
}

void tdm_mbarrier_make(tdm_mbarrier *m, int arrivals) {
  tdm_check_shared(m, 8);
  for (const tdm_phases &p : tdm_here()->owner->mbarriers)
    if (p.at == m)
      tdm_fault("an mbarrier is made twice");
  tdm_here()->owner->mbarriers.push_back({m, arrivals, arrivals, 0, {}, {}, 0, 0});
}

void tdm_mbarrier_expect(tdm_mbarrier *m, int bytes) {
  tdm_phases *p = phases_of(m);
  if (p->left == 0)
    tdm_fault("more threads arrive at an mbarrier than it is for");
  p->left--;
  p->expected += bytes;
  changed(p);
}

void tdm_mbarrier_arrive(tdm_mbarrier *m) { tdm_mbarrier_expect(m, 0); }

void tdm_bulk_begin(const tdm_copy &c, tdm_mbarrier *m) {
  tdm_lane *l = tdm_here();
  tdm_phases *p = phases_of(m);
  if (c.bytes == 0 || c.bytes % 16 != 0)
    tdm_fault("the bytes of a bulk copy are not a multiple of 16");
  for (unsigned end : {0u, c.bytes - 16}) {
    tdm_check_shared((uint8_t *)c.shared + end, 16);
    tdm_check_global((const uint8_t *)c.global + end, 16);
  }
  for (unsigned i = 0; i < c.bytes / 16; i++)
    l->owner->brought[(size_t)((uint8_t *)c.shared - l->task.shared) / 16 + i] = {(uint32_t)(p - l->owner->mbarriers.data()) + 1, p->ended};
  p->copies.push_back(c);
}

void tdm_bulk_begun(tdm_mbarrier *m) { changed(phases_of(m)); }

bool tdm_mbarrier_ended(tdm_mbarrier *m, int odd) {
  tdm_lane *l = tdm_here();
  tdm_phases *p = phases_of(m);
  for (; (int)(p->ended % 2) == odd; p = phases_of(m)) {
    if (lacks_copies(*p)) {
      tdm_acquire(&p->order);
      return false;
    }
    p->waiting[l->task.thread / 32] |= 1u << l->task.thread % 32;
    tdm_yield(l);
  }
  tdm_acquire(&p->order);
  l->seen.resize(l->owner->mbarriers.size());
  l->seen[(size_t)(p - l->owner->mbarriers.data())] = p->ended;
  return true;
}

bool tdm_bulk_next(tdm_mbarrier *m, tdm_copy *copy) {
  tdm_phases *p = phases_of(m);
  if (p->copies.empty()) {
    tdm_release(&p->order);
    end_phase(p);
    return false;
  }
  *copy = p->copies.back();
  p->copies.pop_back();
  return true;
}
