// What a draw is made of: the order of tokens, their weights, the random number.
#ifndef TDM_DRAW_H
#define TDM_DRAW_H

#include "device.h"

// tdm_key is smaller for what comes before: larger logits, equal zeros.
TDM_INLINE uint32_t tdm_key(float logit) {
  const uint32_t bits = tdm_bits(logit == 0.0f ? 0.0f : logit);
  return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

// tdm_weight is exp((logit - largest) * scale) as a multiple of 2^-44, rounded to the
// nearest: 2^44 for the largest, 0 from about exp(-31) down. The exponential is
// its Taylor series of degree 12 after taking out a power of two, an error below 2^-51.
TDM_INLINE uint64_t tdm_weight(float logit, double largest, double scale) {
  const double x = ((double)logit - largest) * scale;
  if (!(x > -32.0))
    return 0;
  const double shift = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to an integer
  const double t = __builtin_fma(x, 1.44269504088896338700e+00, shift), n = t - shift;
  double r = __builtin_fma(n, -6.93147180369123816490e-01, x);
  r = __builtin_fma(n, -1.90821492927058770002e-10, r);
  double y = 1.0 / 479001600;
  y = __builtin_fma(y, r, 1.0 / 39916800);
  y = __builtin_fma(y, r, 1.0 / 3628800);
  y = __builtin_fma(y, r, 1.0 / 362880);
  y = __builtin_fma(y, r, 1.0 / 40320);
  y = __builtin_fma(y, r, 1.0 / 5040);
  y = __builtin_fma(y, r, 1.0 / 720);
  y = __builtin_fma(y, r, 1.0 / 120);
  y = __builtin_fma(y, r, 1.0 / 24);
  y = __builtin_fma(y, r, 1.0 / 6);
  y = __builtin_fma(y, r, 0.5);
  y = __builtin_fma(y, r, 1.0);
  y = __builtin_fma(y, r, 1.0);
  const uint64_t power = (uint64_t)(1023 + 44 + (int64_t)n) << 52;
  return (uint64_t)(y * __builtin_bit_cast(double, power) + 0.5);
}

// tdm_least_weight is the smallest weight that min_p keeps.
TDM_INLINE uint64_t tdm_least_weight(float min_p) {
  const double least = (double)min_p * 17592186044416.0; // 2^44, exactly
  const uint64_t down = (uint64_t)least;
  return down + ((double)down < least ? 1 : 0);
}

// tdm_share is top_p of a sum, rounded up, top_p being cut to a multiple of 2^-32; at
// least 1.
TDM_INLINE uint64_t tdm_share(uint64_t sum, float top_p) {
  const uint64_t p = (uint64_t)((double)top_p * 4294967296.0);
  const uint64_t share = p * (sum >> 32) + ((p * (sum & 0xffffffffu) + 0xffffffffu) >> 32);
  return share > 0 ? share : 1;
}

// tdm_uniform is the random number of a draw as pkg/sampler has it, a fraction of 2^64:
// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC '11) of the offset under the seed.
TDM_INLINE uint64_t tdm_uniform(uint64_t seed, uint64_t offset) {
  uint32_t c[4] = {(uint32_t)offset, (uint32_t)(offset >> 32), 0, 0};
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t x = (uint64_t)0xD2511F53u * c[0], y = (uint64_t)0xCD9E8D57u * c[2];
    const uint32_t next[4] = {(uint32_t)(y >> 32) ^ c[1] ^ k0, (uint32_t)y, (uint32_t)(x >> 32) ^ c[3] ^ k1, (uint32_t)x};
    for (int i = 0; i < 4; i++)
      c[i] = next[i];
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return ((uint64_t)c[0] << 32 | c[1]) & ~(uint64_t)0x7ff; // 53 bits
}

// tdm_warp_total adds up the lanes' values, in every lane.
TDM_INLINE uint64_t tdm_warp_total(uint64_t x) {
  for (int apart = 16; apart > 0; apart /= 2)
    x += tdm_shuffle(x, apart);
  return x;
}

// tdm_best is the likeliest token and its logit; of logits that have a NaN, a NaN.
struct tdm_best {
  float logit;
  int token;
};

// tdm_before is whether x comes before y: larger logits, and NaN before all.
TDM_INLINE bool tdm_before(tdm_best x, tdm_best y) {
  return x.logit > y.logit || (x.logit == y.logit && x.token < y.token) || x.logit != x.logit;
}

TDM_INLINE tdm_best tdm_first_of_warp(tdm_best best) {
  for (int apart = 16; apart > 0; apart /= 2) {
    const tdm_best other = {tdm_shuffle(best.logit, apart), tdm_shuffle(best.token, apart)};
    if (tdm_before(other, best))
      best = other;
  }
  return best;
}

// tdm_likeliest finds the first token of a row. memory is 66 words of shared memory.
TDM_INLINE tdm_best tdm_likeliest(const float *logits, int vocabulary, uint32_t *memory) {
  tdm_best best = {-__builtin_inff(), 0x7fffffff};
  constexpr int at_once = 8; // loads of a thread on their way
  for (int first = 4 * tdm_thread(); first < vocabulary; first += 4 * TDM_DRAW_THREADS * at_once) {
    tdm_floats fours[at_once] = {};
    TDM_UNROLL
    for (int n = 0; n < at_once; n++) {
      const int i = first + 4 * TDM_DRAW_THREADS * n;
      if (i < vocabulary)
        fours[n] = *(const tdm_floats *)(logits + i);
    }
    TDM_UNROLL
    for (int n = 0; n < at_once; n++) {
      TDM_UNROLL
      for (int j = 0; j < 4; j++) {
        const int i = first + 4 * TDM_DRAW_THREADS * n + j;
        if (i < vocabulary && tdm_before({fours[n][j], i}, best))
          best = {fours[n][j], i};
      }
    }
  }
  best = tdm_first_of_warp(best);
  tdm_best *warps = (tdm_best *)memory;
  if (tdm_thread() % 32 == 0)
    warps[tdm_thread() / 32] = best;
  tdm_barrier();
  if (tdm_thread() < 32) {
    best = tdm_first_of_warp(warps[tdm_thread()]);
    if (tdm_thread() == 0)
      warps[32] = best;
  }
  tdm_barrier();
  return warps[32];
}

#endif
