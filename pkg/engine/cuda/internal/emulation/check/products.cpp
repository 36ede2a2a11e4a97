// Products: every kernel against sums in double, and for each row the same bits from all
// of them, whatever the other rows are.
#include "check.h"

namespace {

const char *const thens[] = {"store", "add", "swiglu"};

struct problem {
  int then, k, outputs, rows;
  int lda, ldw, ldo;
  memory<uint16_t> a, w, up;
  std::vector<float> before; // of add

  problem(random_source &r, int then, int k, int outputs, int rows)
      : then(then), k(padded(k, TDM_K)), outputs(outputs), rows(rows), lda(this->k + TDM_K * r.below(2)), ldw(this->k),
        ldo(padded(outputs, TDM_TILE)), a((size_t)rows * lda), w((size_t)padded(outputs, TDM_TILE) * ldw, 0),
        up(then == 2 ? w.length : 0, 0), before((size_t)rows * ldo) {
    for (int row = 0; row < rows; row++)
      for (int i = 0; i < lda; i++)
        a[(size_t)row * lda + i] = i < k ? narrow(r.number()) : i < this->k ? 0 : 0xffff;
    for (int o = 0; o < outputs; o++)
      for (int i = 0; i < k; i++) {
        w[(size_t)o * ldw + i] = narrow(r.number());
        if (then == 2)
          up[(size_t)o * ldw + i] = narrow(r.number());
      }
    for (float &x : before)
      x = r.number();
  }

  // run gives rows [first, first+n) to a kernel, which takes `tile` outputs a block. A
  // sliced one is joined.
  std::vector<uint32_t> run(const char *kernel, int first, int n, int tile, int row_tiles, unsigned shared) {
    memory<int32_t> count(1);
    count[0] = n;
    memory<float> wide_out(then == 2 ? 0 : (size_t)n * ldo);
    memory<uint16_t> narrow_out(then == 2 ? (size_t)n * ldo : 0);
    if (then == 1)
      memcpy(wide_out.at, &before[(size_t)first * ldo], wide_out.length * 4);
    tdm_product_args args = {};
    args.count = count.at;
    args.a = a.at + (size_t)first * lda;
    args.w = w.at;
    args.up = then == 2 ? up.at : nullptr;
    args.out = then == 2 ? (void *)narrow_out.at : wide_out.at;
    args.lda = lda;
    args.ldw = ldw;
    args.ldo = ldo;
    args.k = k;
    args.outputs = outputs;
    const int tiles = (outputs + tile - 1) / tile;
    const bool sliced = strstr(kernel, "sliced") != nullptr;
    memory<uint8_t> parts(sliced ? (size_t)TDM_PARTS_BYTES(tiles, n) : 0);
    args.parts = (float *)parts.at;
    launch(kernel, (unsigned)(tiles * (sliced ? TDM_SLICES : 1)), (unsigned)row_tiles, TDM_PRODUCT_THREADS, shared, args);
    if (sliced) {
      char joined[64];
      snprintf(joined, sizeof joined, "tdm_product_joined_%s", thens[then]);
      launch(joined, (unsigned)(tiles * (TDM_SLICED_ROWS / 8)), (unsigned)row_tiles, TDM_PRODUCT_THREADS, 0, args);
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
    return bits;
  }

  // compare holds a row's bits against the sum in double. A chain of k float32 additions
  // errs by at most k rounding errors of the sum of magnitudes; a GPU's mma may truncate
  // instead of rounding, which is twice that.
  void compare(const char *kernel, const std::vector<uint32_t> &bits, int first) {
    for (size_t n = 0; n < bits.size(); n++) {
      const size_t row = (size_t)first + n / (size_t)outputs, o = n % (size_t)outputs;
      double sum = 0, size = 0, sum_up = 0, size_up = 0;
      for (int i = 0; i < k; i++) {
        const double x = wide(a[row * lda + i]), y = wide(w[o * ldw + i]);
        sum += x * y;
        size += fabs(x * y);
        if (then == 2) {
          const double z = wide(up[o * ldw + i]);
          sum_up += x * z;
          size_up += fabs(x * z);
        }
      }
      const double chain = k * 0x1p-23;
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

void check(random_source &r, int then, int k, int outputs, int rows) {
  problem p(r, then, k, outputs, rows);
  std::vector<uint32_t> want;
  char kernel[64];
  for (int most = 8; most <= 32; most *= 2) {
    snprintf(kernel, sizeof kernel, "tdm_product_thin_%s_%d", thens[then], most);
    std::vector<uint32_t> got;
    for (int row = 0; row < rows;) {
      const int n = std::min(rows - row, r.between(1, most));
      const std::vector<uint32_t> some = p.run(kernel, row, n, TDM_THIN_OUTPUTS(most, then == 2), 1, TDM_THIN_SHARED(most));
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
    snprintf(kernel, sizeof kernel, "tdm_product_tiled_%s_%d", thens[then], most);
    const int row_tiles = (rows + most - 1) / most + r.below(2);
    if (p.run(kernel, 0, rows, TDM_TILED_OUTPUTS(then == 2), row_tiles, TDM_TILED_SHARED(most)) != want)
      fail("%s and the thin one differ: k %d, outputs %d, rows %d", kernel, k, outputs, rows);
  }
  snprintf(kernel, sizeof kernel, "tdm_product_sliced_%s", thens[then]);
  if (p.run(kernel, 0, rows, TDM_TILED_OUTPUTS(then == 2), (rows + TDM_SLICED_ROWS - 1) / TDM_SLICED_ROWS, TDM_TILED_SHARED(64)) != want)
    fail("%s and the thin one differ: k %d, outputs %d, rows %d", kernel, k, outputs, rows);
}

} // namespace

void check_products() {
  random_source r(2);
  for (int n = 0; n < (small ? 2 : 8); n++)
    for (int then = 0; then < 3; then++)
      check(r, then, r.between(1, small ? 700 : 2500), r.between(1, small ? 70 : 200), r.between(1, small ? 20 : 200));
}
