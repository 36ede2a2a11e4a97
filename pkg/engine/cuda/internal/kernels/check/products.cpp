// Products: every kernel against sums in double, and for each row the same bits from all
// of them, whatever the other rows are.
#include "check.h"

#include "../weights.h"

namespace {

const char *const thens[] = {"store", "add", "swiglu"};

// matrix is weights as a kernel has them, and their scales.
struct matrix {
  weights kind;
  int ld, bytes;
  memory<uint8_t> lines;
  memory<float> scales;

  matrix(random_source &r, weights kind, int outputs, int k, int ld)
      : kind(kind), ld(ld), bytes(kind == weights::bf16 ? 2 : 1), lines((size_t)padded(outputs, TDM_TILE) * ld * bytes, 0),
        scales(kind == weights::bf16 ? 0 : outputs) {
    for (int o = 0; o < outputs; o++) {
      for (int i = 0; i < ld; i++) {
        uint8_t *at = &lines[((size_t)o * ld + i) * bytes];
        const int from = i / TDM_K * TDM_K + tdm_byte_k(i % TDM_K);
        if (kind == weights::bf16) {
          const uint16_t x = narrow(r.number());
          if (i < k)
            memcpy(at, &x, 2);
        } else if (from < k) {
          do
            *at = (uint8_t)r.bits();
          while (kind == weights::fp8 && (*at & 0x7f) == 0x7f);
        }
      }
      if (kind != weights::bf16) // some are 0
        scales[o] = r.below(20) ? fabsf(r.number()) / (kind == weights::int8 ? 127.0f : 448.0f) : 0.0f;
    }
  }

  double scale(int o) const { return kind == weights::bf16 ? 1.0 : scales.at[o]; }

  // values are a row's elements by k, without the scale.
  std::vector<double> values(int o) const {
    std::vector<double> all(ld);
    for (int i = 0; i < ld; i++) {
      if (kind == weights::bf16) {
        uint16_t x;
        memcpy(&x, lines.at + ((size_t)o * ld + i) * 2, 2);
        all[i] = wide(x);
      } else {
        all[i / TDM_K * TDM_K + tdm_byte_k(i % TDM_K)] = value_of(kind, lines.at[(size_t)o * ld + i]);
      }
    }
    return all;
  }
};

struct problem {
  int then, k, outputs, rows;
  int lda, ldw, ldo;
  memory<uint16_t> a;
  matrix w, up;
  std::vector<float> before; // of add
  bool normed;               // whether there is a norm: of a, or of what add makes
  deferred norm;

  problem(random_source &r, weights kind, int then, int k, int outputs, int rows)
      : then(then), k(padded(k, TDM_K)), outputs(outputs), rows(rows), lda(this->k + TDM_K * r.below(2)), ldw(this->k),
        ldo(padded(outputs, TDM_TILE)), a((size_t)rows * lda), w(r, kind, outputs, k, ldw), up(r, kind, then == 2 ? outputs : 0, k, ldw),
        before((size_t)rows * ldo), normed(r.below(4) != 0), norm(r, rows, then == 1 ? outputs : r.between(1, 3000)) {
    for (int row = 0; row < rows; row++)
      for (int i = 0; i < lda; i++)
        a[(size_t)row * lda + i] = i < k ? narrow(r.number()) : i < this->k ? 0 : 0xffff;
    for (float &x : before)
      x = r.number();
  }

  // run gives rows [first, first+n) to a kernel, which takes `tile` outputs a block of so many
  // threads. A sliced one is joined.
  std::vector<uint32_t> run(const char *kernel, int first, int n, int tile, int row_tiles, unsigned threads, unsigned shared) {
    memory<int32_t> count(1);
    count[0] = n;
    memory<float> wide_out(then == 2 ? 0 : (size_t)n * ldo);
    memory<uint16_t> narrow_out(then == 2 ? (size_t)n * ldo : 0);
    if (then == 1)
      memcpy(wide_out.at, &before[(size_t)first * ldo], wide_out.length * 4);
    tdm_product_args args = {};
    args.count = count.at;
    args.a = a.at + (size_t)first * lda;
    args.w = w.lines.at;
    args.up = then == 2 ? up.lines.at : nullptr;
    if (w.kind != weights::bf16) {
      args.scales = w.scales.at;
      args.up_scales = then == 2 ? up.scales.at : nullptr;
    }
    args.out = then == 2 ? (void *)narrow_out.at : wide_out.at;
    args.lda = lda;
    args.ldw = ldw;
    args.ldo = ldo;
    args.k = k;
    args.outputs = outputs;
    if (normed) {
      args.norm = norm.args(first);
      if ((strstr(kernel, "tiled") || strstr(kernel, "wide")) && then != 1) {
        tdm_roots_args roots = {count.at, args.norm};
        launch("tdm_roots", (unsigned)(n + TDM_ROOTS_ROWS - 1) / TDM_ROOTS_ROWS + 1, 1, TDM_ROW_THREADS, 0, roots);
      } else {
        args.norm.roots = nullptr; // nobody looks
      }
      if (then == 1) { // which fills both
        memset(norm.squares.at, 0xff, norm.squares.length * 4);
        memset(norm.scaled.at, 0xff, norm.scaled.length * 2);
      }
    }
    const int tiles = (outputs + tile - 1) / tile;
    const bool sliced = strstr(kernel, "sliced") != nullptr;
    memory<uint8_t> parts(sliced ? (size_t)TDM_PARTS_BYTES(tiles, n) : 0);
    args.parts = (float *)parts.at;
    memory<uint8_t> arranged(strstr(kernel, "wide") ? (size_t)TDM_ARRANGED_BYTES(k, n) : 0);
    args.arranged = arranged.at;
    if (strstr(kernel, "wide"))
      launch("tdm_arrange", (unsigned)(k / TDM_K), (unsigned)row_tiles, TDM_ARRANGE_THREADS, 0, args);
    launch(kernel, (unsigned)(tiles * (sliced ? TDM_SLICES : 1)), (unsigned)row_tiles, threads, shared, args);
    if (sliced) {
      char joined[64];
      snprintf(joined, sizeof joined, "tdm_product_joined_%s", thens[then]);
      launch(joined, (unsigned)(tiles * (TDM_SLICED_ROWS / 8)), (unsigned)row_tiles, TDM_PRODUCT_THREADS, TDM_JOINED_SHARED, args);
    }
    std::vector<uint32_t> bits;
    for (int row = 0; row < n; row++)
      for (int o = 0; o < ldo; o++) {
        uint32_t u;
        if (then == 2) {
          u = narrow_out[(size_t)row * ldo + o];
        } else {
          memcpy(&u, &wide_out[(size_t)row * ldo + o], 4);
        }
        if (o < outputs)
          bits.push_back(u);
        else if (then == 1 ? memcmp(&u, &before[(size_t)(first + row) * ldo + o], 4) != 0 : u != (then == 2 ? 0xffffu : ~0u))
          fail("%s wrote past the outputs, at %d of %d", kernel, o, outputs);
      }
    if (then == 1 && normed)
      for (int row = 0; row < n; row++)
        compare_left(kernel, &wide_out[(size_t)row * ldo], first + row);
    return bits;
  }

  // compare_left holds what a row of add leaves for the norm against its definition, for
  // equal bits.
  void compare_left(const char *kernel, const float *x, int row) {
    for (int i = 0; i < norm.ld; i++) {
      const uint16_t got = norm.scaled[(size_t)row * norm.ld + i], want = i < outputs ? narrow(x[i] * norm.weight[i]) : 0xffff;
      if (got != want)
        fail("%s: element %d of %d scaled is %04x, want %04x", kernel, i, outputs, got, want);
    }
    for (int i = 0; i < norm.lds; i++) {
      const float got = norm.squares[(size_t)row * norm.lds + i], want = sum_of_squares(x, TDM_SQUARES * i, outputs);
      if (i < norm.sums ? got != want : !std::isnan(got))
        fail("%s: squares %d of %d are %.9g, want %.9g", kernel, i, norm.sums, got, want);
    }
  }

  // compare holds a row's bits against the sum in double. A chain of k float32 additions
  // errs by at most k rounding errors of the sum of magnitudes, 2^-24 each. A GPU's mma
  // truncates instead; the limit of 2^-23 each leaves room for that. An H200 needs less: for
  // sixteen products, 17 cuts of 2^-25 and one of 2^-23.
  void compare(const char *kernel, const std::vector<uint32_t> &bits, int first) {
    std::vector<std::vector<double>> lines, up_lines;
    for (int o = 0; o < outputs; o++) {
      lines.push_back(w.values(o));
      if (then == 2)
        up_lines.push_back(up.values(o));
    }
    for (size_t n = 0; n < bits.size(); n++) {
      const size_t row = (size_t)first + n / (size_t)outputs, o = n % (size_t)outputs;
      double sum = 0, size = 0, sum_up = 0, size_up = 0;
      for (int i = 0; i < k; i++) {
        const double x = wide(a[row * lda + i]) * w.scale((int)o), y = lines[o][i];
        sum += x * y;
        size += fabs(x * y);
        if (then == 2) {
          const double z = wide(a[row * lda + i]) * up.scale((int)o) * up_lines[o][i];
          sum_up += z;
          size_up += fabs(z);
        }
      }
      // One for the scale; the root's sum has a few roundings, and there is one more by it.
      const double chain = (k + 1) * 0x1p-23 + 0x1p-19, root = normed && then != 1 ? norm.root((int)row) : 1;
      sum *= root;
      size *= root;
      sum_up *= root;
      size_up *= root;
      if (then == 2) {
        const double gate = sum / (1 + exp(-sum)), want = gate * sum_up;
        // silu's slope is below 1.1; the result is rounded to 8 bits.
        near(kernel, wide((uint16_t)bits[n]), want,
             chain * (1.1 * size * fabs(sum_up) + size_up * fabs(gate)) + fabs(want) * 0x1p-8 + 1e-30);
      } else {
        float got;
        memcpy(&got, &bits[n], 4);
        const double old = then == 1 ? before[row * ldo + o] : 0;
        near(kernel, got, old + sum, chain * size + fabs(old + sum) * 0x1p-23);
      }
    }
  }
};

void check(random_source &r, weights kind, int then, int k, int outputs, int rows) {
  problem p(r, kind, then, k, outputs, rows);
  std::vector<uint32_t> want;
  char kernel[64];
  const char *const end = suffix(kind);
  for (int most = 8; most <= 16; most *= 2) {
    snprintf(kernel, sizeof kernel, "tdm_product_thin_%s_%d%s", thens[then], most, end);
    std::vector<uint32_t> got;
    for (int row = 0; row < rows;) {
      const int n = std::min(rows - row, r.between(1, most));
      const std::vector<uint32_t> some = p.run(kernel, row, n, TDM_THIN_OUTPUTS(then == 2), 1, TDM_PRODUCT_THREADS, TDM_THIN_SHARED(most));
      got.insert(got.end(), some.begin(), some.end());
      row += n;
    }
    if (most == 8) {
      p.compare(kernel, got, 0);
      want = got;
    } else if (got != want) {
      fail("%s and the one of 8 rows differ: k %d, outputs %d, rows %d", kernel, k, outputs, rows);
    }
  }
  for (int most = 64; most <= 128; most += 64) {
    snprintf(kernel, sizeof kernel, "tdm_product_tiled_%s_%d%s", thens[then], most, end);
    const int row_tiles = (rows + most - 1) / most + r.below(2);
    if (p.run(kernel, 0, rows, TDM_TILED_OUTPUTS(then == 2), row_tiles, TDM_TILED_THREADS(most), TDM_TILED_SHARED) != want)
      fail("%s and the thin one differ: k %d, outputs %d, rows %d", kernel, k, outputs, rows);
  }
  if (kind == weights::bf16) {
    snprintf(kernel, sizeof kernel, "tdm_product_wide_%s", thens[then]);
    const int row_tiles = (rows + TDM_WIDE_ROWS - 1) / TDM_WIDE_ROWS + r.below(2);
    if (p.run(kernel, 0, rows, TDM_TILED_OUTPUTS(then == 2), row_tiles, TDM_WIDE_THREADS, TDM_WIDE_SHARED) != want)
      fail("%s and the thin one differ: k %d, outputs %d, rows %d", kernel, k, outputs, rows);
  }
  snprintf(kernel, sizeof kernel, "tdm_product_sliced_%s%s", thens[then], end);
  if (p.run(kernel, 0, rows, TDM_TILED_OUTPUTS(then == 2), (rows + TDM_SLICED_ROWS - 1) / TDM_SLICED_ROWS, TDM_TILED_THREADS(TDM_SLICED_ROWS), TDM_TILED_SHARED) != want)
    fail("%s and the thin one differ: k %d, outputs %d, rows %d", kernel, k, outputs, rows);
}

} // namespace

void check_products() {
  random_source r(2);
  for (int n = 0; n < (small ? 1 : 2); n++)
    for (weights kind : {weights::bf16, weights::int8, weights::fp8})
      for (int then = 0; then < 3; then++)
        check(r, kind, then, r.between(1, small ? 700 : 2500), r.between(1, small ? 70 : 200), r.between(1, small ? 20 : 200));
  // More tiles of rows than are beside each other.
  if (!small)
    check(r, weights::bf16, 0, 64, 300, r.between(1600, 1700));
  for (int then = 0; then < 3; then++)
    check(r, weights::bf16, then, r.between(300, small ? 700 : 1500), r.between(100, 150), r.between(193, small ? 200 : 400));
}
