// Attention: finished rows of thin and tall items against sums in double; and the same
// bits for each row, however its splits are spread over items and whatever rows it shares
// an item with. Keys and values in fp8 give the bits of the same numbers in bf16.
#include "check.h"

namespace {

struct problem {
  bool fp8;
  int size, kv_heads, group, heads, block_tokens, window, tokens, first, ldq;
  int64_t layer, page, at;
  memory<int32_t> table;
  memory<uint16_t> q;
  std::vector<float> numbers[2]; // keys and values, [token][kv head][dimension]
  memory<uint8_t> pages;
  float scale;

  // tokens of context, of which those from `first` on are queries.
  // With `low` all scores are far below zero.
  problem(random_source &r, bool fp8, int size, int kv_heads, int group, int window, int tokens, int first, bool low)
      : fp8(fp8), size(size), kv_heads(kv_heads), group(group), heads(kv_heads * group), block_tokens(1 << r.between(fp8 ? 4 : 2, fp8 ? 8 : 6)),
        window(window), tokens(tokens), first(first), ldq(padded(heads * size, TDM_TILE)), layer(slice_bytes(fp8, kv_heads, block_tokens, size)),
        page(layer * 2), at(layer * r.below(2)), table((size_t)(tokens + block_tokens - 1) / block_tokens),
        q((size_t)(tokens - first) * ldq), pages((table.length + 2) * page), scale(1 / sqrtf((float)size)) {
    for (size_t i = 0; i < table.length; i++)
      table[i] = (int32_t)i;
    for (size_t i = table.length; i > 1; i--)
      std::swap(table[i - 1], table[(size_t)r.below((int)i)]);
    for (int row = 0; row < tokens - first; row++)
      for (int i = 0; i < heads * size; i++)
        q[(size_t)row * ldq + i] = narrow(low ? -100 * fabsf(r.number()) : 2 * r.number());
    // What no query may see stays NaN.
    for (int part = 0; part < 2; part++) {
      numbers[part].assign((size_t)tokens * kv_heads * size, 0);
      for (int t = window > 0 ? std::max(0, first + 1 - window) : 0; t < tokens; t++)
        for (int kv = 0; kv < kv_heads; kv++) {
          const int exponent = 127 - r.between(6, 12);
          if (fp8)
            slice(t)[layer - 2 * kv_heads * block_tokens + line(part, kv, t)] = (uint8_t)exponent;
          for (int i = 0; i < size; i++) {
            float x = low && part == 0 ? fabsf(r.number()) : r.number();
            if (fp8) { // any code; those of the largest numbers are as many as those of the smallest
              const uint8_t code = (uint8_t)(r.below(0x7f) | (x < 0 ? 0x80 : 0));
              slice(t)[(int64_t)line(part, kv, t) * size + fp8_place(i)] = code;
              x = (float)ldexp(value_of(weights::fp8, code), exponent - 127);
            } else {
              x = wide(((uint16_t *)slice(t))[(int64_t)line(part, kv, t) * size + i] = narrow(x));
            }
            numbers[part][((size_t)t * kv_heads + kv) * size + i] = x;
          }
        }
    }
  }

  // problem is the same one with its numbers in bf16, which have them all.
  explicit problem(problem &p)
      : fp8(false), size(p.size), kv_heads(p.kv_heads), group(p.group), heads(p.heads), block_tokens(p.block_tokens), window(p.window),
        tokens(p.tokens), first(p.first), ldq(p.ldq), layer(slice_bytes(false, kv_heads, block_tokens, size)), page(layer), at(0),
        table(p.table.length), q(p.q.length), pages(p.pages.length / (size_t)p.page * (size_t)page), scale(p.scale) {
    memcpy(table.at, p.table.at, 4 * table.length);
    memcpy(q.at, p.q.at, 2 * q.length);
    for (int part = 0; part < 2; part++) {
      numbers[part] = p.numbers[part];
      for (int t = window > 0 ? std::max(0, first + 1 - window) : 0; t < tokens; t++)
        for (int kv = 0; kv < kv_heads; kv++)
          for (int i = 0; i < size; i++)
            ((uint16_t *)slice(t))[(int64_t)line(part, kv, t) * size + i] = narrow(number(part, kv, t, i));
    }
  }

  uint8_t *slice(int t) { return pages.at + table[t / block_tokens] * page + at; }
  int line(int part, int kv, int t) const { return (part * kv_heads + kv) * block_tokens + t % block_tokens; }
  float number(int part, int kv, int t, int i) const { return numbers[part][((size_t)t * kv_heads + kv) * size + i]; }

  struct plan {
    std::vector<tdm_item> items;
    std::vector<tdm_joint> joints;
    int slots = 0;
  };

  tdm_item item(int row, int n) const {
    tdm_item i = {};
    i.row0 = row;
    i.tokens = n;
    i.position = first + row;
    i.last = (first + row + n - 1) / TDM_SPLIT + 1;
    i.first = window > 0 ? std::max(0, first + row + 1 - window) / TDM_SPLIT : 0;
    i.slot = -1;
    return i;
  }

  // whole gives each item all its splits, apart each split an item.
  void whole(plan &p, int row, int n) { p.items.push_back(item(row, n)); }
  void apart(plan &p, int row, int n, int slots) {
    const tdm_item all = item(row, n);
    tdm_joint j = {};
    j.row0 = row;
    j.tokens = n;
    j.slot = p.slots;
    j.stride = slots;
    j.splits = all.last - all.first;
    p.joints.push_back(j);
    for (int s = all.first; s < all.last; s++) {
      tdm_item one = all;
      one.first = s;
      one.last = s + 1;
      one.slot = p.slots;
      p.slots += slots;
      p.items.push_back(one);
    }
  }

  // outcome is the rows, and of splits apart what was joined: of each split of each row
  // and head m, l, and the result not divided by l.
  struct outcome {
    memory<uint16_t> out;
    std::vector<float> splits;
  };

  std::unique_ptr<outcome> run(random_source &r, const char *kernel, unsigned shared, const plan &p) {
    memory<int32_t> count(1), joins(1), tables(table.length + 3);
    count[0] = (int32_t)p.items.size();
    joins[0] = (int32_t)p.joints.size();
    memory<tdm_item> items(p.items.size());
    std::copy(p.items.begin(), p.items.end(), items.at);
    for (size_t i = 0; i < items.length; i++)
      items[i].table = 3;
    memcpy(tables.at + 3, table.at, table.length * 4);
    memory<tdm_joint> joints(p.joints.size());
    std::copy(p.joints.begin(), p.joints.end(), joints.at);
    memory<float> results((size_t)p.slots * kv_heads * TDM_THIN_ROWS * size), sums((size_t)p.slots * kv_heads * TDM_THIN_ROWS * 2);
    std::unique_ptr<outcome> o(new outcome{memory<uint16_t>(q.length), {}});
    tdm_attention_args args = {};
    args.count = count.at;
    args.items = items.at;
    args.tables = tables.at;
    args.q = q.at;
    args.pages = pages.at;
    args.out = o->out.at;
    args.results = results.at;
    args.sums = sums.at;
    args.ldq = ldq;
    args.page_bytes = page;
    args.layer_bytes = at;
    args.heads = heads;
    args.kv_heads = kv_heads;
    args.size = size;
    args.block_tokens = block_tokens;
    args.window = window;
    args.scale = scale;
    launch(kernel, (unsigned)r.between(1, 3), (unsigned)kv_heads, strstr(kernel, "tall") ? TDM_TALL_THREADS : TDM_ATTENTION_THREADS, shared, args);
    if (!p.joints.empty()) {
      tdm_join_args join = {joins.at, joints.at, results.at, sums.at, o->out.at, ldq, heads, kv_heads, size, 0};
      launch("tdm_join", (unsigned)r.between(1, 3), (unsigned)kv_heads, TDM_ATTENTION_THREADS, 0, join);
    }
    for (const tdm_joint &j : p.joints)
      for (int row = 0; row < j.tokens; row++)
        for (int split = 0; split < j.splits; split++) {
          // Items of fewer tokens may lack splits of which the row sees nothing.
          const int number = item(j.row0, j.tokens).first + split, end = first + j.row0 + row + 1;
          const int begin = window > 0 ? std::max(0, end - window) : 0;
          if (number * TDM_SPLIT >= end || (number + 1) * TDM_SPLIT <= begin)
            continue;
          for (int h = 0; h < heads; h++) {
            const int line = row * group + h % group;
            const size_t at = ((size_t)(j.slot + split * j.stride + line / TDM_THIN_ROWS) * kv_heads + h / group) * TDM_THIN_ROWS + line % TDM_THIN_ROWS;
            o->splits.insert(o->splits.end(), &sums[2 * at], &sums[2 * at] + 2);
            o->splits.insert(o->splits.end(), &results[size * at], &results[size * at] + size);
          }
        }
    return o;
  }

  // compare holds rows against sums in double. A score errs by a rounding a dimension of
  // the sum of magnitudes; weights are rounded to 8 bits, and the result is.
  void compare(const char *kernel, memory<uint16_t> &out) {
    for (int row = 0; row < tokens - first; row++)
      for (int h = 0; h < heads; h++) {
        const int position = first + row, begin = window > 0 ? std::max(0, position + 1 - window) : 0, kv = h / group;
        std::vector<double> p;
        double largest = -INFINITY, sum = 0, reach = 0;
        for (int t = begin; t <= position; t++) {
          double score = 0, size_of = 0;
          for (int i = 0; i < size; i++) {
            const double x = (double)wide(q[(size_t)row * ldq + h * size + i]) * number(0, kv, t, i);
            score += x;
            size_of += fabs(x);
          }
          p.push_back(score * scale);
          largest = std::max(largest, p.back());
          reach = std::max(reach, size_of * scale);
        }
        for (double &x : p)
          sum += x = exp(x - largest);
        const double slack = 2 * size * 0x1p-23 * reach + 0x1p-8 + (double)p.size() * 0x1p-23;
        for (int i = 0; i < size; i++) {
          double want = 0, magnitude = 0;
          for (int t = begin; t <= position; t++) {
            want += p[t - begin] / sum * number(1, kv, t, i);
            magnitude += p[t - begin] / sum * fabs(number(1, kv, t, i));
          }
          near(kernel, wide(out[(size_t)row * ldq + h * size + i]), want, slack * magnitude + fabs(want) * 0x1p-8);
        }
      }
  }

  void same(const char *what, memory<uint16_t> &out, memory<uint16_t> &want) {
    for (int row = 0; row < tokens - first; row++)
      if (memcmp(&out[(size_t)row * ldq], &want[(size_t)row * ldq], (size_t)heads * size * 2) != 0) {
        fail("%s: row %d differs; size %d, group %d, window %d, tokens %d from %d", what, row, size, group, window, tokens, first);
        return;
      }
  }

  void check(random_source &r) {
    const int padded_size = TDM_HEAD(size), rows = tokens - first;
    char thin[64], tall[64], bf16[64];
    snprintf(thin, sizeof thin, "tdm_attention_thin_%d%s", padded_size, fp8 ? "_fp8" : "");
    snprintf(tall, sizeof tall, "tdm_attention_tall_%d%s", padded_size, fp8 ? "_fp8" : "");
    const unsigned thin_shared = TDM_ATTENTION_THIN_SHARED(padded_size, fp8), tall_shared = TDM_ATTENTION_TALL_SHARED(padded_size, fp8);
    plan ones, somes, parts, talls, tall_parts;
    for (int row = 0; row < rows; row++)
      apart(ones, row, 1, 1);
    for (int row = 0, n; row < rows; row += n) {
      n = std::min(rows - row, r.between(1, TDM_THIN_ROWS / group));
      whole(somes, row, n);
      apart(parts, row, n, 1);
    }
    for (int row = 0, n; row < rows; row += n) {
      n = std::min(rows - row, r.between(1, TDM_TALL_ROWS / group));
      whole(talls, row, n);
      apart(tall_parts, row, n, 4);
    }
    const std::unique_ptr<outcome> want = run(r, thin, thin_shared, ones);
    compare(thin, want->out);
    if (fp8) {
      problem plain(*this);
      snprintf(bf16, sizeof bf16, "tdm_attention_thin_%d", padded_size);
      const std::unique_ptr<outcome> got = plain.run(r, bf16, TDM_ATTENTION_THIN_SHARED(padded_size, false), ones);
      same("the same numbers in bf16", got->out, want->out);
      if (got->splits != want->splits)
        fail("the same numbers in bf16: a split differs; size %d, group %d, window %d, tokens %d from %d", size, group, window, tokens, first);
    }
    const struct {
      const char *what, *kernel;
      unsigned shared;
      plan *p;
    } others[] = {{"thin, several rows", thin, thin_shared, &somes},
                  {"thin, several rows, splits apart", thin, thin_shared, &parts},
                  {"tall", tall, tall_shared, &talls},
                  {"tall, splits apart", tall, tall_shared, &tall_parts}};
    for (const auto &other : others) {
      const std::unique_ptr<outcome> got = run(r, other.kernel, other.shared, *other.p);
      same(other.what, got->out, want->out);
      if (!got->splits.empty() && (got->splits.size() != want->splits.size() ||
                                   memcmp(got->splits.data(), want->splits.data(), 4 * want->splits.size()) != 0))
        fail("%s: a split differs; size %d, group %d, window %d, tokens %d from %d", other.what, size, group, window, tokens, first);
    }
    if (fp8)
      check_lost(r, thin, thin_shared, somes, tall, tall_shared, tall_parts, want->out);
  }

  // check_lost: a key or a value that has no scale makes NaN of what sees it, and nothing of
  // other rows, whatever they share with those that do.
  void check_lost(random_source &r, const char *thin, unsigned thin_shared, const plan &somes, const char *tall, unsigned tall_shared,
                  const plan &talls, memory<uint16_t> &want) {
    const int lost = r.between(first, tokens - 1), part = r.below(2), kv = r.below(kv_heads);
    memset(slice(lost) + (int64_t)line(part, kv, lost) * size, 0, (size_t)size);
    slice(lost)[layer - 2 * kv_heads * block_tokens + line(part, kv, lost)] = 255;
    for (int n = 0; n < 2; n++) {
      const std::unique_ptr<outcome> got = n == 0 ? run(r, thin, thin_shared, somes) : run(r, tall, tall_shared, talls);
      for (int row = 0; row < tokens - first; row++)
        for (int h = 0; h < heads; h++) {
          const bool sees = h / group == kv && first + row >= lost && (window == 0 || first + row - window < lost);
          const size_t from = (size_t)row * ldq + h * size;
          for (int i = 0; i < size; i++)
            if (sees ? !std::isnan(wide(got->out[from + i])) : got->out[from + i] != want[from + i])
              return fail("%s of token %d lost: row %d, head %d, dimension %d is %g; size %d, group %d, window %d, tokens %d from %d",
                          part ? "value" : "key", lost, row, h, i, wide(got->out[from + i]), size, group, window, tokens, first);
        }
    }
  }
};

} // namespace

void check_attention() {
  random_source r(3);
  const int sizes[] = {16, 32, 64, 80, 96, 128, 256};
  for (int n = 0; n < 4 * rounds; n++)
    for (int size : sizes) {
      const bool fp8 = n % 2 == 1;
      const int kv_heads = r.between(1, 2), group = r.between(1, small ? 4 : 8);
      int context = r.between(1, small ? 600 : 900);
      if (n / 2 % 2 == 1) // rows on both sides of a split's end
        context = TDM_SPLIT * r.between(1, 2) + r.between(1, 10);
      if (size == 32 && n < 2) // more splits than are joined at a time
        context = TDM_SPLIT * 9 + r.between(1, 300);
      const int rows = std::min(context, r.between(1, small ? 12 : 40)), window = r.below(2) == 0 ? 0 : r.between(1, 400);
      problem p(r, fp8, size, kv_heads, group, window, context, context - rows, r.below(2) == 1);
      p.check(r);
    }
}
