// tdm_draw: a token for each row of logits, by steps 2 to 5 and 7 of the definition
// in pkg/sampler (step 6, typical_p, is the host's). Weights are integers, so that their
// sums do not depend on an order and every thread may add where it likes; draw.h has what
// they are. -1 is drawn from logits that have a NaN, or of which the largest is infinite.
#include "draw.h"

// tdm_row is a row and what its block has found out about it.
struct tdm_row {
  const float *logits;
  int vocabulary;
  double largest, scale; // scale is 1/temperature
  uint32_t last_key;     // tokens are kept up to this one in order: its key, and the last
  int last_token;        // one of those that have it
  uint64_t *sums;        // in shared memory: of chunks
  uint32_t *bins;        // and of digits: tokens, then low and high words of weights

  TDM_METHOD bool kept(uint32_t key, int token) const {
    return key < last_key || (key == last_key && token <= last_token);
  }
  TDM_METHOD uint64_t weight(int token) const { return tdm_weight(logits[token], largest, scale); }
};

// tdm_chunk_tokens is how many neighbours are a chunk: whole warps' worth, and at most
// TDM_DRAW_CHUNKS chunks.
TDM_INLINE int tdm_chunk_tokens(int vocabulary) {
  return tdm_most(512, (vocabulary + TDM_DRAW_CHUNKS * 32 - 1) / (TDM_DRAW_CHUNKS * 32) * 32);
}

// tdm_sum adds up the value of each token, and leaves the sums of chunks for tdm_find.
template <class F> TDM_INLINE uint64_t tdm_sum(const tdm_row &row, F value) {
  const int tokens = tdm_chunk_tokens(row.vocabulary), chunks = (row.vocabulary + tokens - 1) / tokens;
  tdm_barrier(); // somebody may still read the sums before
  for (int chunk = tdm_thread() / 32; chunk < chunks; chunk += TDM_DRAW_THREADS / 32) {
    const int end = tdm_least((chunk + 1) * tokens, row.vocabulary);
    uint64_t sum = 0;
    for (int i = chunk * tokens + tdm_thread() % 32; i < end; i += 32)
      sum += value(i);
    sum = tdm_warp_total(sum);
    if (tdm_thread() % 32 == 0)
      row.sums[chunk] = sum;
  }
  tdm_barrier();
  uint64_t total = 0;
  for (int chunk = 0; chunk < chunks; chunk++)
    total += row.sums[chunk];
  return total;
}

// tdm_find is the first token at which the running sum of the values exceeds target, which
// is below their sum. It follows tdm_sum of the same values.
template <class F> TDM_INLINE int tdm_find(const tdm_row &row, F value, uint64_t target) {
  const int tokens = tdm_chunk_tokens(row.vocabulary), lane = tdm_thread() % 32;
  int chunk = 0;
  for (; row.sums[chunk] <= target; chunk++)
    target -= row.sums[chunk];
  int *found = (int *)(row.sums + TDM_DRAW_CHUNKS);
  const int end = tdm_least((chunk + 1) * tokens, row.vocabulary);
  for (int first = chunk * tokens; tdm_thread() < 32 && first < end; first += 32) {
    const uint64_t mine = first + lane < end ? value(first + lane) : 0;
    uint64_t before = 0, sum = mine;
    for (int apart = 1; apart < 32; apart *= 2) {
      const uint64_t other = tdm_shuffle(sum, apart);
      if (lane & apart)
        before += other;
      sum += other;
    }
    if (before <= target && target < before + mine)
      *found = first + lane;
    if (target < sum)
      break;
    target -= sum;
  }
  tdm_barrier();
  return *found;
}

// tdm_cut keeps the shortest beginning of the order whose tokens, or whose weights, add up
// to target, which what is kept does. It finds the key of the last token digit by digit,
// the first digit being the highest 11 bits.
TDM_INLINE void tdm_cut(tdm_row &row, bool by_weight, uint64_t target) {
  const uint32_t last_key = row.last_key;
  const int last_token = row.last_token;
  uint32_t prefix = 0, tokens = 0;
  for (int digit = 0; digit < 3; digit++) {
    const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0, bits = digit == 2 ? 10 : 11;
    tdm_barrier();
    for (int i = tdm_thread(); i < 3 * TDM_DRAW_BINS; i += TDM_DRAW_THREADS)
      row.bins[i] = 0;
    tdm_barrier();
    for (int i = tdm_thread(); i < row.vocabulary; i += TDM_DRAW_THREADS) {
      const uint32_t key = tdm_key(row.logits[i]);
      if ((digit > 0 && key >> (shift + bits) != prefix) || !row.kept(key, i))
        continue;
      uint32_t *bin = row.bins + (key >> shift & ((1u << bits) - 1));
      tdm_add_shared(bin, 1);
      if (!by_weight)
        continue;
      const uint64_t w = row.weight(i);
      const uint32_t low = (uint32_t)w, old = tdm_add_shared(bin + TDM_DRAW_BINS, low);
      tdm_add_shared(bin + 2 * TDM_DRAW_BINS, (uint32_t)(w >> 32) + (old + low < old ? 1 : 0));
    }
    tdm_barrier();
    const auto bin = [&](int i) __attribute__((always_inline)) {
      return by_weight ? (uint64_t)row.bins[2 * TDM_DRAW_BINS + i] << 32 | row.bins[TDM_DRAW_BINS + i] : (uint64_t)row.bins[i];
    };
    // A warp adds up 64 bins; then all threads look for the same one.
    const int first = tdm_thread() / 32 * 64 + tdm_thread() % 32;
    const uint64_t sum = tdm_warp_total(bin(first) + bin(first + 32));
    if (tdm_thread() % 32 == 0)
      row.sums[tdm_thread() / 32] = sum;
    tdm_barrier();
    int at = 0;
    for (; row.sums[at / 64] < target; at += 64)
      target -= row.sums[at / 64];
    for (; bin(at) < target; at++)
      target -= bin(at);
    prefix = prefix << bits | (uint32_t)at;
    tokens = row.bins[at];
    if (digit == 2 && by_weight) { // all tokens of a key weigh the same
      const uint64_t each = bin(at) / tokens;
      target = (target + each - 1) / each;
    }
  }
  row.last_key = prefix;
  row.last_token = 0x7fffffff;
  if (prefix == last_key)
    row.last_token = last_token;
  if (target == tokens)
    return;
  const int limit = row.last_token;
  const auto same = [&](int i) __attribute__((always_inline)) -> uint64_t {
    return tdm_key(row.logits[i]) == prefix && i <= limit;
  };
  tdm_sum(row, same);
  row.last_token = tdm_find(row, same, target - 1);
}

TDM_KERNEL(TDM_DRAW_THREADS, 1) tdm_draw(const tdm_draw_args a) {
  tdm_begin();
  const int n = tdm_block_x();
  if (n >= *a.count)
    return;
  tdm_row row;
  row.logits = a.logits + (int64_t)n * a.ld;
  row.vocabulary = a.vocabulary;
  row.sums = (uint64_t *)tdm_shared();
  row.bins = (uint32_t *)(row.sums + TDM_DRAW_CHUNKS + 1);
  const tdm_wish wish = a.wishes[n];

  const tdm_best best = tdm_likeliest(row.logits, row.vocabulary, row.bins);
  const bool finite = best.logit - best.logit == 0.0f;
  if (wish.temperature == 0.0f || wish.top_k == 1 || !finite) {
    if (tdm_thread() == 0)
      a.tokens[n] = finite ? best.token : -1;
    return;
  }
  row.largest = best.logit;
  row.scale = 1.0 / (double)wish.temperature;
  row.last_key = 0xffffffffu;
  row.last_token = 0x7fffffff;
  const auto kept = [&](int i) __attribute__((always_inline)) -> uint64_t {
    return row.kept(tdm_key(row.logits[i]), i) ? row.weight(i) : 0;
  };
  if (wish.top_k > 0 && wish.top_k < a.vocabulary)
    tdm_cut(row, false, (uint64_t)wish.top_k);
  if (wish.top_p > 0.0f && wish.top_p < 1.0f)
    tdm_cut(row, true, tdm_share(tdm_sum(row, kept), wish.top_p));
  const uint64_t least = tdm_least_weight(wish.min_p);
  const auto left = [&](int i) __attribute__((always_inline)) -> uint64_t {
    const uint64_t w = kept(i);
    return w >= least ? w : 0;
  };
  const uint64_t sum = tdm_sum(row, left);
  const int token = tdm_find(row, left, tdm_high(tdm_uniform(wish.seed, wish.offset), sum));
  if (tdm_thread() == 0)
    a.tokens[n] = token;
}
