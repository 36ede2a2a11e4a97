// The kernels that take rows one by one: embeddings, norms, heads, SwiGLU, copies.
#include "check.h"

namespace {

void check_embed(random_source &r) {
  const int rows = r.between(1, 20), launched = rows + r.below(5), vocabulary = r.between(1, 50);
  const int width = r.between(1, small ? 300 : 3000), ld = padded(width, TDM_K);
  memory<tdm_counts> counts(1, 0);
  counts[0].rows = rows;
  memory<int32_t> tokens((size_t)rows);
  memory<uint16_t> table((size_t)vocabulary * ld);
  for (size_t i = 0; i < table.length; i++)
    table[i] = narrow(r.number());
  for (int i = 0; i < rows; i++)
    tokens[i] = r.below(vocabulary);
  memory<float> x((size_t)rows * ld, 0);
  deferred norm(r, rows, width);
  memset(norm.squares.at, 0xff, norm.squares.length * 4);
  tdm_embed_args args = {counts.at, tokens.at, table.at, x.at, ld, ld, width, 0, norm.args()};
  launch("tdm_embed", (unsigned)launched, 1, TDM_ROW_THREADS, 0, args);
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < ld; i++)
      if (x[(size_t)row * ld + i] != (i < width ? wide(table[(size_t)tokens[row] * ld + i]) : 0))
        fail("tdm_embed: row %d, element %d of %d", row, i, width);
  for (int row = 0; row < rows; row++) {
    const float *from = &x[(size_t)row * ld];
    for (int i = 0; i < norm.ld; i++)
      if (norm.scaled[(size_t)row * norm.ld + i] != (i < width ? narrow(from[i] * norm.weight[i]) : 0xffff))
        fail("tdm_embed: row %d, element %d of %d scaled", row, i, width);
    for (int i = 0; i < norm.lds; i++) {
      const float got = norm.squares[(size_t)row * norm.lds + i];
      if (i < norm.sums ? got != sum_of_squares(from, TDM_SQUARES * i, width) : !std::isnan(got))
        fail("tdm_embed: row %d, squares %d of %d", row, i, norm.sums);
    }
  }
}

// A sum of n squares has at most n/128 + 9 additions here, and the root halves their
// roundings; three more follow.
void check_roots(random_source &r) {
  const int rows = r.between(1, 40), launched = rows + r.below(20);
  memory<int32_t> count(1);
  count[0] = rows;
  deferred norm(r, rows, r.between(1, small ? 1500 : 9000));
  tdm_roots_args args = {count.at, norm.args()};
  launch("tdm_roots", (unsigned)(launched + TDM_ROOTS_ROWS - 1) / TDM_ROOTS_ROWS, 1, TDM_ROW_THREADS, 0, args);
  for (int row = 0; row < rows; row++)
    near("tdm_roots", norm.roots[row], norm.root(row), norm.root(row) * (16 + norm.sums / 128) * 0x1p-24);
}

// A sum of n squares in float32 errs by at most n/256 + 16 roundings here, and the square
// root halves that; then come three more, and the rounding to bf16.
void check_norm(random_source &r) {
  const int rows = r.between(1, 8), width = r.between(1, small ? 1500 : 9000), ldx = padded(width, TDM_K);
  const bool indexed = r.below(2) == 1;
  const float eps = 1e-5f;
  memory<int32_t> count(1), index((size_t)rows);
  count[0] = rows;
  memory<float> x((size_t)rows * ldx, 0), weight((size_t)width);
  memory<uint16_t> out((size_t)rows * ldx, 0), again((size_t)ldx, 0);
  for (int row = 0; row < rows; row++) {
    index[row] = r.below(rows);
    for (int i = 0; i < width; i++)
      x[(size_t)row * ldx + i] = 10 * r.number();
  }
  for (int i = 0; i < width; i++)
    weight[i] = r.number();
  tdm_norm_args args = {count.at, indexed ? index.at : nullptr, x.at, weight.at, out.at, ldx, ldx, width, eps};
  launch("tdm_norm", (unsigned)(rows + r.below(3)), 1, TDM_ROW_THREADS, TDM_NORM_SHARED, args);
  for (int row = 0; row < rows; row++) {
    const float *from = &x[(size_t)(indexed ? index[row] : row) * ldx];
    double sum = 0;
    for (int i = 0; i < width; i++)
      sum += (double)from[i] * from[i];
    for (int i = 0; i < ldx; i++) {
      const double want = i < width ? from[i] / sqrt(sum / width + eps) * weight[i] : 0;
      near("tdm_norm", wide(out[(size_t)row * ldx + i]), want, fabs(want) * (0x1p-8 + width * 0x1p-30));
    }
    // The same row alone.
    count[0] = 1;
    args.index = nullptr;
    args.x = from;
    args.out = again.at;
    launch("tdm_norm", 1, 1, TDM_ROW_THREADS, TDM_NORM_SHARED, args);
    if (memcmp(again.at, &out[(size_t)row * ldx], (size_t)ldx * 2) != 0)
      fail("tdm_norm: a row differs if it is alone");
  }
}

// check_fp8_head holds the codes of a head and the exponent of its scale against what they
// are made of. odd is 1 for a head that is too small for codes and 2 for one that has no
// scale.
void check_fp8_head(const uint8_t *codes, int exponent, int stride, int odd, const std::vector<double> &want, const std::vector<double> &reach) {
  const int size = (int)want.size();
  double largest = 0, most = 0;
  for (int i = 0; i < size; i++) {
    largest = std::max(largest, fabs(want[i]));
    most = std::max(most, reach[i] * size * 0x1p-23);
  }
  const double scale = ldexp(1, exponent - 127);
  if (odd == 1 || odd == 2) {
    if (exponent != (odd == 1 ? 0 : 255))
      fail("tdm_heads: the scale of a head that has %s has the exponent %d", odd == 1 ? "next to nothing" : "no numbers", exponent);
  } else if (!(largest - most <= 448 * scale && largest + most > 224 * scale)) {
    fail("tdm_heads: the scale of %g has the exponent %d", largest, exponent);
  }
  for (int i = 0; i < stride; i++) {
    const uint8_t code = codes[fp8_place(i)];
    if (odd == 1 || odd == 2 || i >= size) {
      if (code != 0)
        fail("tdm_heads: code %d of a head of %d is %02x", i, size, code);
      continue;
    }
    // Half a step: a sixteenth of it, or of the smallest numbers 2^-10.
    near("tdm_heads, fp8", value_of(weights::fp8, code) * scale, want[i], fabs(want[i]) * 0x1p-4 + scale * 0x1p-10 + reach[i] * size * 0x1p-23);
  }
}

void check_heads(random_source &r, bool fp8) {
  const int rows = r.between(1, 6), size = 2 * r.between(1, 128), stride = padded(size, 16), kv_heads = r.between(1, 4), heads = kv_heads * r.between(1, 4);
  const int all = heads + 2 * kv_heads, half = size / 2, positions = 50, block_tokens = fp8 ? 16 << r.below(5) : 1 << r.below(6), pages = 3 + rows;
  const int ld = padded(all * size, TDM_TILE), ldq = padded(heads * stride, TDM_TILE);
  const bool biased = r.below(2) == 1, normed = r.below(2) == 1;
  const float eps = 1e-6f;
  const int64_t layer = slice_bytes(fp8, kv_heads, block_tokens, stride), page = layer * 3, at = layer * r.below(3);
  memory<tdm_counts> counts(1, 0);
  counts[0].rows = rows;
  memory<float> qkv((size_t)rows * ld), bias((size_t)all * size), q_norm((size_t)size), k_norm((size_t)size);
  memory<float> cosine((size_t)positions * half), sine((size_t)positions * half);
  memory<int32_t> position((size_t)rows), slot((size_t)rows);
  memory<uint16_t> q((size_t)rows * ldq, 0);
  memory<uint8_t> bytes((size_t)pages * page);
  for (memory<float> *m : {&qkv, &bias, &q_norm, &k_norm})
    for (size_t i = 0; i < m->length; i++)
      m->at[i] = r.number();
  for (size_t i = 0; i < cosine.length; i++) {
    cosine[i] = cosf((float)i);
    sine[i] = sinf((float)i);
  }
  // Heads of one row that are nothing but small, or that are not numbers; with fp8 both
  // have a scale of their own.
  std::vector<int> odd((size_t)all, 0);
  for (int h = heads; fp8 && h < all; h++) {
    odd[h] = r.below(4);
    if (odd[h] == 1)
      for (int i = 0; i < size; i++)
        qkv[h * size + i] = biased ? -bias[h * size + i] : 0x1p-120f * r.number();
    if (odd[h] == 2)
      qkv[h * size + r.below(size)] = r.below(2) ? INFINITY : NAN;
  }
  for (int row = 0; row < rows; row++) {
    position[row] = r.below(positions);
    slot[row] = (row + 1) * block_tokens + r.below(block_tokens);
  }
  tdm_heads_args args = {};
  args.counts = counts.at;
  args.qkv = qkv.at;
  args.bias = biased ? bias.at : nullptr;
  args.q_norm = normed ? q_norm.at : nullptr;
  args.k_norm = normed ? k_norm.at : nullptr;
  args.cos = cosine.at;
  args.sin = sine.at;
  args.positions = position.at;
  args.slots = slot.at;
  args.q = q.at;
  args.pages = bytes.at;
  args.ld = ld;
  args.ldq = ldq;
  args.page_bytes = page;
  args.layer_bytes = at;
  args.heads = heads;
  args.kv_heads = kv_heads;
  args.size = size;
  args.block_tokens = block_tokens;
  args.eps = eps;
  args.stride = stride;
  args.fp8 = fp8;
  launch("tdm_heads", (unsigned)(rows + r.below(3)), (unsigned)(args.heads + 2 * args.kv_heads + TDM_HEADS_BLOCK - 1) / TDM_HEADS_BLOCK, TDM_ROW_THREADS, 0, args);

  std::vector<std::pair<int64_t, int64_t>> written; // in the pages: where and how much
  for (int row = 0; row < rows; row++)
    for (int h = 0; h < all; h++) {
      std::vector<double> x((size_t)size);
      double sum = 0;
      for (int i = 0; i < size; i++) {
        x[i] = qkv[(size_t)row * ld + h * size + i] + (biased ? bias[h * size + i] : 0);
        sum += x[i] * x[i];
      }
      if (normed && h < heads + kv_heads)
        for (int i = 0; i < size; i++)
          x[i] = x[i] / sqrt(sum / size + eps) * (h < heads ? q_norm[i] : k_norm[i]);
      std::vector<double> want((size_t)size), reach((size_t)size);
      for (int i = 0; i < size; i++) {
        want[i] = x[i];
        reach[i] = fabs(x[i]);
        if (h < heads + kv_heads) {
          const double c = cosine[position[row] * half + i % half], s = sine[position[row] * half + i % half];
          want[i] = i < half ? x[i] * c - x[i + half] * s : x[i] * c + x[i - half] * s;
          reach[i] = fabs(x[i]) + fabs(x[(i + half) % size]);
        }
      }
      if (fp8 && h >= heads) {
        const int line = (h - heads) * block_tokens + slot[row] % block_tokens;
        const uint8_t *slice = bytes.at + slot[row] / block_tokens * page + at;
        check_fp8_head(slice + (int64_t)line * stride, slice[layer - 2LL * kv_heads * block_tokens + line], stride, row == 0 ? odd[h] : 0, want, reach);
        written.push_back({slice + (int64_t)line * stride - bytes.at, stride});
        written.push_back({slice + layer - 2LL * kv_heads * block_tokens + line - bytes.at, 1});
        continue;
      }
      const uint16_t *got;
      if (h < heads) {
        got = &q[(size_t)row * ldq + h * stride];
      } else {
        const int part = h - heads; // keys of all heads, then values
        got = (uint16_t *)(bytes.at + slot[row] / block_tokens * page + at) + (part * block_tokens + slot[row] % block_tokens) * stride;
        written.push_back({(const uint8_t *)got - bytes.at, 2 * stride});
      }
      for (int i = size; i < stride; i++)
        if (got[i] != 0)
          fail("tdm_heads: element %d behind a head of %d is not zero", i, size);
      for (int i = 0; i < size; i++) {
        near("tdm_heads", wide(got[i]), want[i], fabs(want[i]) * 0x1p-8 + reach[i] * size * 0x1p-23);
      }
    }
  for (const auto &[begin, length] : written)
    memset(bytes.at + begin, 0xff, (size_t)length);
  for (size_t i = 0; i < bytes.length; i++)
    if (bytes[i] != 0xff) {
      fail("tdm_heads wrote elsewhere in the pages too, at byte %zu", i);
      break;
    }
}

// Two roundings of exp and one each of what follows, then that to bf16.
void check_swiglu(random_source &r) {
  const int rows = r.between(1, 8), width = r.between(1, small ? 500 : 5000);
  const int up = padded(width, TDM_TILE), ld = up + padded(width, TDM_K), ldo = padded(width, TDM_K);
  memory<int32_t> count(1);
  count[0] = rows;
  memory<uint16_t> both((size_t)rows * ld), out((size_t)rows * ldo);
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < width; i++) {
      both[(size_t)row * ld + i] = narrow(r.number() * (r.below(8) ? 8 : 200));
      both[(size_t)row * ld + up + i] = narrow(10 * r.number());
    }
  tdm_swiglu_args args = {count.at, both.at, out.at, ld, ldo, up, width};
  launch("tdm_swiglu", (unsigned)(rows + r.below(3)), 1, TDM_ROW_THREADS, 0, args);
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < ldo; i++) {
      const uint16_t got = out[(size_t)row * ldo + i];
      if (i >= width) {
        if (got != 0xffff)
          fail("tdm_swiglu wrote past a row of %d, at %d", width, i);
        continue;
      }
      const double gate = wide(both[(size_t)row * ld + i]), want = gate / (1 + exp(-gate)) * wide(both[(size_t)row * ld + up + i]);
      near("tdm_swiglu", wide(got), want, fabs(want) * (0x1p-8 + 0x1p-18) + 1e-30);
    }
}

void check_gather(random_source &r) {
  const int rows = r.between(1, 12), from_rows = r.between(1, 30), bytes = 16 * r.between(1, 700), beyond = r.below(3);
  memory<int32_t> count(1), index((size_t)rows);
  memory<uint8_t> from((size_t)from_rows * bytes), to((size_t)(rows + beyond) * bytes);
  count[0] = rows;
  for (int row = 0; row < rows; row++)
    index[row] = r.below(from_rows);
  for (size_t i = 0; i < from.length; i++)
    from[i] = (uint8_t)r.bits();
  tdm_gather_args args = {count.at, index.at, from.at, to.at, bytes};
  launch("tdm_gather", (unsigned)(rows + beyond), 1, TDM_ROW_THREADS, 0, args);
  for (int row = 0; row < rows; row++)
    if (memcmp(&to[(size_t)row * bytes], &from[(size_t)index[row] * bytes], (size_t)bytes) != 0)
      fail("tdm_gather: row %d of %d bytes", row, bytes);
  for (size_t i = (size_t)rows * bytes; i < to.length; i++)
    if (to[i] != 0xff)
      fail("tdm_gather wrote past its rows");
}

} // namespace

void check_rows() {
  random_source r(1);
  for (int n = 0; n < (small ? 3 : 20); n++) {
    check_embed(r);
    check_norm(r);
    check_roots(r);
    check_heads(r, false);
    check_heads(r, true);
    check_swiglu(r);
    check_gather(r);
  }
}
