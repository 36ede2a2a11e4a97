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
  tdm_embed_args args = {counts.at, tokens.at, table.at, x.at, ld, ld, width, 0};
  launch("tdm_embed", (unsigned)launched, 1, TDM_ROW_THREADS, 0, args);
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < ld; i++)
      if (x[(size_t)row * ld + i] != (i < width ? wide(table[(size_t)tokens[row] * ld + i]) : 0))
        fail("tdm_embed: row %d, element %d of %d", row, i, width);
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

void check_heads(random_source &r) {
  const int rows = r.between(1, 6), size = 2 * r.between(1, 128), stride = padded(size, 16), kv_heads = r.between(1, 4), heads = kv_heads * r.between(1, 4);
  const int all = heads + 2 * kv_heads, half = size / 2, positions = 50, block_tokens = 1 << r.below(6), pages = 3 + rows;
  const int ld = padded(all * size, TDM_TILE), ldq = padded(heads * stride, TDM_TILE);
  const bool biased = r.below(2) == 1, normed = r.below(2) == 1;
  const float eps = 1e-6f;
  const int64_t layer = 2LL * kv_heads * block_tokens * stride * 2, page = layer * 3, at = layer * r.below(3);
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
  launch("tdm_heads", (unsigned)(rows + r.below(3)), 1, TDM_ROW_THREADS, 0, args);

  size_t written = 0;
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
      const uint16_t *got;
      if (h < heads) {
        got = &q[(size_t)row * ldq + h * stride];
      } else {
        const int part = h - heads; // keys of all heads, then values
        got = (uint16_t *)(bytes.at + slot[row] / block_tokens * page + at) + (part * block_tokens + slot[row] % block_tokens) * stride;
        written += (size_t)stride;
      }
      for (int i = size; i < stride; i++)
        if (got[i] != 0)
          fail("tdm_heads: element %d behind a head of %d is not zero", i, size);
      for (int i = 0; i < size; i++) {
        double want = x[i], reach = fabs(x[i]);
        if (h < heads + kv_heads) {
          const double c = cosine[position[row] * half + i % half], s = sine[position[row] * half + i % half];
          want = i < half ? x[i] * c - x[i + half] * s : x[i] * c + x[i - half] * s;
          reach = fabs(x[i]) + fabs(x[(i + half) % size]);
        }
        near("tdm_heads", wide(got[i]), want, fabs(want) * 0x1p-8 + reach * size * 0x1p-23);
      }
    }
  for (size_t i = 0; i < bytes.length; i += 2)
    if (bytes[i] != 0xff || bytes[i + 1] != 0xff)
      written--;
  if (written != 0)
    fail("tdm_heads wrote elsewhere in the pages too, or left something out: %zd", (ssize_t)written);
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
    check_heads(r);
    check_swiglu(r);
    check_gather(r);
  }
}
