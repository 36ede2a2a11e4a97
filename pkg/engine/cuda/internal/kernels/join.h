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

// tdm_join_sums takes a split's largest score and sum of weights into the total. l of a
// split in which the row saw something is not 0; others must be left out.
TDM_INLINE tdm_factors tdm_join_sums(tdm_total &total, tdm_total split) {
  if (total.l == 0.0f) {
    total = split;
    return {0.0f, 1.0f};
  }
  const float m = split.m > total.m ? split.m : total.m;
  const tdm_factors f = {tdm_exp_down(total.m - m), tdm_exp_down(split.m - m)};
  total.l = total.l * f.old + split.l * f.add;
  total.m = m;
  return f;
}

TDM_INLINE float tdm_join_result(float total, float split, tdm_factors f) { return total * f.old + split * f.add; }

#endif
