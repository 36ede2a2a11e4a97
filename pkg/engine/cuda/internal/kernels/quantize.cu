// tdm_quantize_*: rows of bf16 weights to 8 bits, a block a row: its largest magnitude, its
// scale, then sixteen bytes a thread at a time.
#include "fp8.h"
#include "weights.h"

// tdm_largest is the largest magnitude of a row, as the bits of a bf16: NaN is above
// infinity, which is above all others.
TDM_INLINE int tdm_largest(const uint16_t *row, int width) {
  int *each = (int *)tdm_shared(); // one a warp
  const int thread = tdm_thread();
  int most = 0;
  for (int i = 8 * thread; i < width; i += 8 * TDM_ROW_THREADS) {
    const tdm_quad eight = tdm_load16(row + i);
    for (int j = 0; j < 4; j++)
      most = tdm_most(most, tdm_most((int)(eight[j] & 0x7fff), (int)(eight[j] >> 16 & 0x7fff)));
  }
  for (int apart = 16; apart > 0; apart /= 2)
    most = tdm_most(most, tdm_shuffle(most, apart));
  if (thread % 32 == 0)
    each[thread / 32] = most;
  tdm_barrier();
  for (int w = 0; w < TDM_ROW_THREADS / 32; w++)
    most = tdm_most(most, each[w]);
  return most;
}

struct tdm_to_int8 {
  static constexpr float most = 127.0f;
  // The low byte of a float that has whole numbers as its lowest bits. w/scale is below
  // 127.5: the scale errs by half a part in 2^23, or in 500 where it is a denormal.
  TDM_METHOD static uint32_t code(float x) { return tdm_bits(x + 12582912.0f) & 0xff; }
};

struct tdm_to_fp8 {
  static constexpr float most = 448.0f;
  TDM_METHOD static uint32_t code(float x) { return tdm_fp8(x); }
};

template <class to> TDM_INLINE void tdm_quantize(const tdm_quantize_args &a) {
  tdm_begin();
  const uint16_t *row = a.from + tdm_block_x() * a.ld;
  uint8_t *out = a.to + tdm_block_x() * a.ld;
  const int most = tdm_largest(row, (int)a.ld);
  const float scale = tdm_wide((uint16_t)most) / to::most;
  const bool real = most > 0 && most < 0x7f80;
  for (int i = 16 * tdm_thread(); i < a.ld; i += 16 * TDM_ROW_THREADS) {
    tdm_quad codes = {};
    if (real) {
      TDM_UNROLL
      for (int j = 0; j < 16; j++)
        codes[j / 4] |= to::code(tdm_wide(row[i / TDM_K * TDM_K + tdm_byte_k(i % TDM_K + j)]) / scale) << 8 * (j % 4);
    }
    *(tdm_quad *)(out + i) = codes;
  }
  if (tdm_thread() == 0)
    a.scales[tdm_block_x()] = scale;
}

TDM_KERNEL(TDM_ROW_THREADS, 1) tdm_quantize_int8(const tdm_quantize_args a) { tdm_quantize<tdm_to_int8>(a); }
TDM_KERNEL(TDM_ROW_THREADS, 1) tdm_quantize_fp8(const tdm_quantize_args a) { tdm_quantize<tdm_to_fp8>(a); }
