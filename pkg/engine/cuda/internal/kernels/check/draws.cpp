// Draws against the definition in pkg/sampler, done with sorts and one running sum.
#include "check.h"

#include "../draw.h"

namespace {

typedef unsigned __int128 wide_integer;

bool before(const float *x, int a, int b) { return x[a] != x[b] ? x[a] > x[b] : a < b; }

// draw is the definition. Products of a float32 and a sum are exact in wide integers, once
// the fraction is a multiple of 2^-32.
int draw(const float *x, int vocabulary, const tdm_wish &wish) {
  std::vector<int> order((size_t)vocabulary);
  for (int i = 0; i < vocabulary; i++) {
    if (x[i] != x[i])
      return -1;
    order[i] = i;
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) { return before(x, a, b); });
  const float largest = x[order[0]];
  if (std::isinf(largest))
    return -1;
  if (wish.temperature == 0 || wish.top_k == 1)
    return order[0];
  std::vector<uint64_t> weights;
  for (int i = 0; i < vocabulary; i++)
    weights.push_back(tdm_weight(x[i], largest, 1.0 / wish.temperature));
  if (wish.top_k > 0 && wish.top_k < vocabulary)
    order.resize((size_t)wish.top_k);
  if (wish.top_p > 0 && wish.top_p < 1) {
    uint64_t sum = 0, running = 0;
    for (int i : order)
      sum += weights[i];
    const wide_integer share = (wide_integer)(uint64_t)ldexp(wish.top_p, 32) * sum; // times 2^32
    size_t n = 0;
    do
      running += weights[order[n++]];
    while ((wide_integer)running << 32 < share);
    order.resize(n);
  }
  std::sort(order.begin(), order.end());
  uint64_t sum = 0, running = 0;
  for (int i : order)
    if ((double)weights[i] >= ldexp(wish.min_p, 44))
      sum += weights[i];
  const wide_integer target = (wide_integer)tdm_uniform(wish.seed, wish.offset) * sum; // times 2^64
  for (int i : order) {
    if ((double)weights[i] >= ldexp(wish.min_p, 44))
      running += weights[i];
    if ((wide_integer)running << 64 > target)
      return i;
  }
  return -1;
}

void check_draw(random_source &r, int kind) {
  const int rows = r.between(1, small ? 3 : 8), beyond = r.below(2);
  const int vocabulary = r.between(1, r.below(2) ? 300 : small ? 3000 : 40000), ld = padded(vocabulary, TDM_TILE);
  memory<int32_t> count(1), tokens((size_t)rows);
  memory<tdm_wish> wishes((size_t)rows);
  memory<float> logits((size_t)rows * ld, 0x7f); // what pads them is large
  count[0] = rows;
  for (int row = 0; row < rows; row++) {
    float *x = &logits[(size_t)row * ld];
    for (int i = 0; i < vocabulary; i++) {
      const float spread = 4 * (r.number() + r.number() + r.number());
      switch (kind) {
      case 0: x[i] = spread; break;
      case 1: x[i] = r.below(vocabulary) ? spread : NAN; break; // one or so, or none
      case 2: x[i] = (float)(r.below(5) - 2) * (r.below(2) ? 0.5f : -0.0f); break; // equal ones, two zeros
      case 3: x[i] = r.below(2) ? -INFINITY : 100 * spread; break;
      case 4: x[i] = NAN; break;
      case 5: x[i] = i == vocabulary / 2 ? INFINITY : spread; break;
      default: x[i] = i == 0 && row % 2 ? NAN : -INFINITY; break;
      }
    }
    tdm_wish &w = wishes[row];
    w.temperature = r.below(5) == 0 ? 0 : 0.1f + 1.5f * fabsf(r.number());
    w.top_k = r.below(2) ? 0 : r.between(1, r.below(2) ? 5 : vocabulary + 3);
    w.top_p = r.below(2) ? 0 : r.below(4) == 0 ? 1 : fabsf(r.number());
    w.min_p = r.below(2) ? 0 : r.below(5) == 0 ? 1 : fabsf(r.number()) * 0.3f;
    w.seed = (uint64_t)r.bits() << 32 | r.bits();
    w.offset = r.bits();
  }
  tdm_draw_args args = {count.at, wishes.at, logits.at, tokens.at, ld, vocabulary, 0};
  launch("tdm_draw", (unsigned)(rows + beyond), 1, TDM_DRAW_THREADS, TDM_DRAW_SHARED, args);
  for (int row = 0; row < rows; row++) {
    const tdm_wish &w = wishes[row];
    const int want = draw(&logits[(size_t)row * ld], vocabulary, w);
    if (tokens[row] != want)
      fail("tdm_draw: token %d, want %d, of %d; logits of kind %d, temperature %g, top_k %d, top_p %g, min_p %g", tokens[row],
           want, vocabulary, kind, w.temperature, w.top_k, w.top_p, w.min_p);
  }
}

void check_weights(random_source &r) {
  for (int i = 0; i < 100000; i++) {
    const float x = -35 * fabsf(r.number());
    const double scale = 0.2 + fabsf(r.number()), want = (double)expl((long double)x * scale) * 0x1p44;
    near("tdm_weight", (double)tdm_weight(x, 0, scale), want, want < 0.6 ? 1 : 0.51);
  }
  if (tdm_weight(3, 3, 1) != (uint64_t)1 << 44 || tdm_weight(-INFINITY, 3, 1) != 0)
    fail("tdm_weight of the largest or of minus infinity");
}

} // namespace

void check_draws() {
  random_source r(4);
  check_weights(r);
  for (int n = 0; n < (small ? 14 : 70); n++)
    check_draw(r, n % 7);
}
