// How the results of splits become one, in order.
#ifndef TDM_JOIN_H
#define TDM_JOIN_H

#include "device.h"

// tdm_total is the largest score and the sum of weights of the splits so far; l is 0
// before the first.
struct tdm_total {
  float m, l;
};

// tdm_factors is what the result so far and the split's are multiplied by.
struct tdm_factors {
  float old, add;
};

// tdm_join_largest takes a split's largest score into m, the largest so far. `seen` is
// whether there was a split before.
TDM_INLINE tdm_factors tdm_join_largest(float &m, bool seen, float split) {
  if (!seen) {
    m = split;
    return {0.0f, 1.0f};
  }
  // exp of the larger one less itself is 1. If they are not finite all is NaN anyway.
  const bool larger = split > m;
  const float e = tdm_exp_down(larger ? m - split : split - m);
  m = larger ? split : m;
  return {larger ? e : 1.0f, larger ? 1.0f : e};
}

// tdm_join_result is a sum of weights, or a result not divided by it, with a split's.
TDM_INLINE float tdm_join_result(float total, float split, tdm_factors f) { return total * f.old + split * f.add; }

// tdm_join_sums takes a split's largest score and sum of weights into the total. l of a
// split in which the row saw something is not 0; others must be left out.
TDM_INLINE tdm_factors tdm_join_sums(tdm_total &total, tdm_total split) {
  const tdm_factors f = tdm_join_largest(total.m, total.l != 0.0f, split.m);
  total.l = tdm_join_result(total.l, split.l, f);
  return f;
}

#endif
