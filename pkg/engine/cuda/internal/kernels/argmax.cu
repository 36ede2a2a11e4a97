// tdm_argmax: the likeliest token of each row, the first of them where several are equal.
// NaNs come after everything else.
#include "device.h"

// tdm_first is whether logit x of token i comes before logit y of token j. Token -1 is
// none.
TDM_INLINE bool tdm_first(float x, int i, float y, int j) {
  if (i < 0 || j < 0)
    return j < 0 && i >= 0;
  return x > y || (x == y && i < j);
}

// tdm_likeliest leaves in every lane the first of the warp's.
TDM_INLINE void tdm_likeliest(float &best, int &token) {
  for (int apart = 16; apart > 0; apart /= 2) {
    const float x = tdm_shuffle(best, apart);
    const int i = tdm_shuffle(token, apart);
    if (tdm_first(x, i, best, token)) {
      best = x;
      token = i;
    }
  }
}

TDM_KERNEL(TDM_ARGMAX_THREADS, 1) tdm_argmax(const tdm_argmax_args a) {
  const int row = tdm_block_x();
  if (row >= *a.count)
    return;
  float *bests = (float *)tdm_shared(); // one a warp
  int *tokens = (int *)(bests + 32);
  const float *logits = a.logits + (int64_t)row * a.ld;

  float best = 0;
  int token = -1;
  for (int i = 4 * tdm_thread(); i < a.vocabulary; i += 4 * TDM_ARGMAX_THREADS) {
    const tdm_floats four = *(const tdm_floats *)(logits + i);
    for (int j = 0; j < 4; j++) {
      const float x = four[j];
      if (i + j < a.vocabulary && x == x && (token < 0 || x > best)) {
        best = x;
        token = i + j;
      }
    }
  }
  tdm_likeliest(best, token);
  if (tdm_thread() % 32 == 0) {
    bests[tdm_thread() / 32] = best;
    tokens[tdm_thread() / 32] = token;
  }
  tdm_barrier();
  if (tdm_thread() >= 32)
    return;
  best = bests[tdm_thread()];
  token = tokens[tdm_thread()];
  tdm_likeliest(best, token);
  if (tdm_thread() == 0)
    a.tokens[row] = token < 0 ? 0 : token;
}
