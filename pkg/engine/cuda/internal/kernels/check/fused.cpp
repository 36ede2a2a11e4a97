// The product of queries, keys and values that does what tdm_heads does: for equal bits
// with a product that is stored, and tdm_heads behind it.
#include "check.h"

namespace {

void check(random_source &r, weights kind, int size, int kv_heads, int heads) {
  const int half = size / 2, bytes = kind == weights::bf16 ? 2 : 1; // of a weight
  const int all = (heads + 2 * kv_heads) * size, k = padded(r.between(1, small ? 300 : 900), TDM_K), rows = r.between(1, small ? 20 : 70);
  const int positions = 50, block_tokens = 16 << r.below(5), pages = 2 + rows;
  const int ld = padded(all, TDM_K), ldq = padded(heads * size, TDM_K);
  const bool biased = r.below(2) == 1, normed = r.below(4) != 0;
  const int64_t layer = 4LL * kv_heads * block_tokens * size, page = layer * 2;
  memory<int32_t> position((size_t)rows), slot((size_t)rows);
  memory<uint16_t> a((size_t)rows * k);
  memory<uint8_t> w((size_t)padded(all, TDM_TILE) * k * bytes);
  memory<float> bias((size_t)all), scales(bytes == 1 ? (size_t)all : 0), cosine((size_t)positions * half), sine((size_t)positions * half);
  for (size_t i = 0; i < a.length; i++)
    a[i] = narrow(r.number());
  for (size_t i = 0; i < w.length; i += (size_t)bytes) {
    const uint16_t wide = narrow(r.number());
    if (bytes == 2)
      memcpy(&w[i], &wide, 2);
    else
      w[i] = (uint8_t)(r.bits() & 0xbf); // no NaN of e4m3
  }
  for (memory<float> *m : {&bias, &scales, &cosine, &sine})
    for (size_t i = 0; i < m->length; i++)
      m->at[i] = r.number();
  for (int row = 0; row < rows; row++) {
    position[row] = r.below(positions);
    slot[row] = (row + 1) * block_tokens + r.below(block_tokens);
  }
  deferred norm(r, rows, r.between(1, 3000));

  tdm_product_heads_args args = {};
  args.product.w = w.at;
  args.product.scales = bytes == 1 ? scales.at : nullptr;
  args.product.lda = args.product.ldw = args.product.k = k;
  args.heads.bias = biased ? bias.at : nullptr;
  args.heads.cos = cosine.at;
  args.heads.sin = sine.at;
  args.heads.ld = ld;
  args.heads.ldq = ldq;
  args.heads.page_bytes = page;
  args.heads.layer_bytes = layer;
  args.heads.heads = heads;
  args.heads.kv_heads = kv_heads;
  args.heads.size = args.heads.stride = size;
  args.heads.block_tokens = block_tokens;

  for (int most = 8; most <= 16; most *= 2) {
    memory<uint16_t> q((size_t)rows * ldq), want_q((size_t)rows * ldq);
    memory<uint8_t> kv((size_t)pages * page), want_kv((size_t)pages * page);
    char kernel[64], stored[64];
    snprintf(kernel, sizeof kernel, "tdm_product_thin_heads_%d%s", most, suffix(kind));
    snprintf(stored, sizeof stored, "tdm_product_thin_store_%d%s", most, suffix(kind));
    for (int row = 0; row < rows;) {
      const int n = std::min(rows - row, r.between(1, most));
      memory<tdm_counts> counts(1, 0);
      counts[0].rows = n;
      memory<float> qkv((size_t)n * ld);
      args.product.count = &counts[0].rows;
      args.product.a = a.at + (size_t)row * k;
      args.product.outputs = all / 2;
      if (normed)
        args.product.norm = norm.args(row);
      args.heads.counts = counts.at;
      args.heads.positions = position.at + row;
      args.heads.slots = slot.at + row;
      args.heads.q = q.at + (size_t)row * ldq;
      args.heads.pages = kv.at;
      const auto blocks = [&](int paired) { return (unsigned)(args.product.outputs + TDM_THIN_OUTPUTS(paired) - 1) / (unsigned)TDM_THIN_OUTPUTS(paired); };
      launch(kernel, blocks(1), 1, TDM_PRODUCT_THREADS, TDM_THIN_SHARED(most), args);
      args.product.outputs = all;
      args.product.out = qkv.at;
      args.product.ldo = ld;
      args.heads.qkv = qkv.at;
      args.heads.q = want_q.at + (size_t)row * ldq;
      args.heads.pages = want_kv.at;
      launch(stored, blocks(0), 1, TDM_PRODUCT_THREADS, TDM_THIN_SHARED(most), args.product);
      launch("tdm_heads", (unsigned)n, (unsigned)(args.heads.heads + 2 * args.heads.kv_heads + TDM_HEADS_BLOCK - 1) / TDM_HEADS_BLOCK, TDM_ROW_THREADS, 0, args.heads);
      args.product.out = nullptr;
      args.heads.qkv = nullptr;
      row += n;
    }
    if (memcmp(q.at, want_q.at, q.length * 2) != 0)
      fail("%s: queries differ from tdm_heads': %d heads of %d, k %d, rows %d", kernel, heads, size, k, rows);
    if (memcmp(kv.at, want_kv.at, kv.length) != 0)
      fail("%s: pages differ from tdm_heads': %d KV heads of %d, k %d, rows %d", kernel, kv_heads, size, k, rows);
  }
}

} // namespace

void check_heads_products() {
  random_source r(6);
  check(r, weights::bf16, 48, 1, 3); // an odd number of tiles: the last of 32 rows would read past the weights
  for (int n = 0; n < (small ? 1 : 2) * rounds; n++)
    for (weights kind : {weights::bf16, weights::int8, weights::fp8}) {
      const int kv_heads = r.between(1, 3);
      check(r, kind, 16 * r.between(1, small ? 4 : 16), kv_heads, kv_heads * r.between(1, 3));
    }
}
