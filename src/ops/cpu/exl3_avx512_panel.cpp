// AVX-512 kernels for more rows: the panels of exl3_columns.h with all 16 columns of a strip in one
// register. The same integers, and in f32 the same chains of fused multiply-adds, as with AVX2.
#include <immintrin.h>

#include <utility>

#include "ops/cpu/exl3_columns.h"
#include "ops/cpu/exl3_isa.h"

namespace onecard::ops::cpu_exl3 {
namespace {

// Two multiply-adds a cycle of latency 4 or 5: as many sums as hide it.
constexpr int kRowsAtOnce = 12;

ONECARD_INLINE void add_to(float* out, __m512 sum) {
  _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), sum));
}

template <int R>
ONECARD_INLINE void multiply(const Panel16& panel, const byte* x, const float* scales, float* sums,
                             int64_t sums_stride) {
  constexpr int64_t kRowBytes = 256;
  __m512i sum[R];
  for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_si512();
  for (int p = 0; p < kRowPairs; ++p) {
    const __m512i w = _mm512_load_si512(panel.sums[p]);
    for (int r = 0; r < R; ++r) {
      int pair;
      __builtin_memcpy(&pair, x + r * kRowBytes + 4 * p, 4);
      sum[r] = _mm512_dpwssd_epi32(sum[r], w, _mm512_set1_epi32(pair));
    }
  }
  for (int r = 0; r < R; ++r)
    add_to(sums + r * sums_stride,
           _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r]), _mm512_set1_ps(scales[r])));
}

template <int R>
ONECARD_INLINE void multiply(const PanelF32& panel, const byte* x, const float*, float* sums,
                             int64_t sums_stride) {
  constexpr int64_t kRowBytes = 512;
  __m512 sum[R];
  for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_ps();
  for (int k = 0; k < 2 * kRowPairs; ++k) {
    const __m512 w = _mm512_load_ps(panel.values[k]);
    for (int r = 0; r < R; ++r) {
      float value;
      __builtin_memcpy(&value, x + r * kRowBytes + 4 * k, 4);
      sum[r] = _mm512_fmadd_ps(w, _mm512_set1_ps(value), sum[r]);
    }
  }
  for (int r = 0; r < R; ++r) add_to(sums + r * sums_stride, sum[r]);
}

// The rows that are left, 1 + one of Less.
template <int RowBytes, typename Panel, int... Less>
ONECARD_INLINE void multiply_rest(const Panel& panel, const Exl3Strips& a, int first, float* sums,
                                  std::integer_sequence<int, Less...>) {
  const auto rows = [&](auto less) {
    constexpr int kRows = 1 + decltype(less)::value;
    if (a.rows - first == kRows)
      multiply<kRows>(panel, a.activations + first * RowBytes, a.scales + first,
                      sums + first * a.sums_stride, a.sums_stride);
  };
  (rows(std::integral_constant<int, Less>()), ...);
}

template <int RowBytes, typename Panel>
ONECARD_INLINE void multiply_rows(const Panel& panel, const Exl3Strips& a, float* sums) {
  int r = 0;
  for (; r + kRowsAtOnce <= a.rows; r += kRowsAtOnce)
    multiply<kRowsAtOnce>(panel, a.activations + r * RowBytes, a.scales + r,
                          sums + r * a.sums_stride, a.sums_stride);
  multiply_rest<RowBytes>(panel, a, r, sums, std::make_integer_sequence<int, kRowsAtOnce - 1>());
}

template <int K>
void panel16(const Exl3Strips& a) {
  Panel16 panel;
  for (int strip = 0; strip < a.num_strips; ++strip) {
    const byte* const tiles = a.tiles + strip * a.strip_stride_bytes;
    prefetch(tiles, a.prefetch_bytes, kTilesPerStrip * 32 * K);
    decode<K>(tiles, a.tile_stride_bytes, panel);
    multiply_rows<256>(panel, a, a.sums + 16 * strip);
  }
}

template <int K>
void panel_f32(const Exl3Strips& a) {
  PanelF32 panel;
  for (int strip = 0; strip < a.num_strips; ++strip) {
    const byte* const tiles = a.tiles + strip * a.strip_stride_bytes;
    prefetch(tiles, a.prefetch_bytes, kTilesPerStrip * 32 * K);
    decode<K, Codebook::kMul1>(tiles, a.tile_stride_bytes, panel);
    multiply_rows<512>(panel, a, a.sums + 16 * strip);
  }
}

template <int K>
constexpr Exl3Kernel kernel16() {
  return {"avx512 panel",
          onecard::cpu::Isa::kAvx512Vnni,
          Exl3Precision::kInt16,
          Codebook::kMul1,
          K,
          kExl3MaxRows,
          Exl3Activations::kNatural16,
          256,
          kExl3Int16Limit,
          panel16<K>};
}
template <int K>
constexpr Exl3Kernel kernel_f32() {
  return {"avx512 f32",
          onecard::cpu::Isa::kAvx512Vnni,
          Exl3Precision::kF32,
          Codebook::kMul1,
          K,
          kExl3MaxRows,
          Exl3Activations::kStreamF32,
          512,
          0,
          panel_f32<K>};
}

template <int... I>
struct Tables {
  static constexpr Exl3Kernel kKernels[] = {kernel16<I + 1>()..., kernel_f32<I + 1>()...};
};
template <int... I>
constexpr KernelTable table(std::integer_sequence<int, I...>) {
  return {Tables<I...>::kKernels, sizeof(Tables<I...>::kKernels) / sizeof(Exl3Kernel)};
}

}  // namespace

constinit const KernelTable kAvx512PanelKernels = table(std::make_integer_sequence<int, 8>());

}  // namespace onecard::ops::cpu_exl3
