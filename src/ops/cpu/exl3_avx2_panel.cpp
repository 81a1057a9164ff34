// AVX2 kernels for more rows, and for every K and codebook: a strip is decoded once into a panel
// that stays in the first-level cache, then every row is multiplied by it. In f32 a few rows are
// multiplied while the strip is decoded; either way an output is one chain of fused multiply-adds
// in the order of the stream, so the bits are the same.
#include <immintrin.h>

#include <utility>

#include "ops/cpu/exl3_columns.h"
#include "ops/cpu/exl3_isa.h"

namespace onecard::ops::cpu_exl3 {
namespace {

ONECARD_INLINE __m256 broadcast(const byte* x) {
  return _mm256_broadcast_ss(reinterpret_cast<const float*>(x));
}

// ---- MUL1: 16-bit byte sums, int32 dots

template <int R>
ONECARD_INLINE void multiply(const Panel16& panel, const byte* x, const float* scales, float* sums,
                             int64_t sums_stride) {
  constexpr int64_t kRowBytes = 256;
  __m256i sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 2
  for (int p = 0; p < kRowPairs; ++p) {
    const __m256i w0 = load256(panel.sums[p][0]), w1 = load256(panel.sums[p][8]);
    for (int r = 0; r < R; ++r) {
      int pair;
      __builtin_memcpy(&pair, x + r * kRowBytes + 4 * p, 4);
      const __m256i activation = _mm256_set1_epi32(pair);
      sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(w0, activation));
      sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(w1, activation));
    }
  }
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < 2; ++h) {
      float* const out = sums + r * sums_stride + 8 * h;
      _mm256_storeu_ps(
          out, _mm256_add_ps(_mm256_loadu_ps(out), _mm256_mul_ps(_mm256_cvtepi32_ps(sum[r][h]),
                                                                 _mm256_set1_ps(scales[r]))));
    }
}

// ---- every codebook: exact values in f32

constexpr int64_t kF32RowBytes = 512;

template <int R>
ONECARD_INLINE void add_sums(const __m256 (&sum)[R][2], float* sums, int64_t sums_stride) {
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < 2; ++h) {
      float* const out = sums + r * sums_stride + 8 * h;
      _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), sum[r][h]));
    }
}

template <int R>
ONECARD_INLINE void multiply(const PanelF32& panel, const byte* x, const float*, float* sums,
                             int64_t sums_stride) {
  __m256 sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
#pragma GCC unroll 2
  for (int k = 0; k < 2 * kRowPairs; ++k) {
    const __m256 w0 = _mm256_load_ps(panel.values[k]), w1 = _mm256_load_ps(panel.values[k] + 8);
    for (int r = 0; r < R; ++r) {
      const __m256 activation = broadcast(x + r * kF32RowBytes + 4 * k);
      sum[r][0] = _mm256_fmadd_ps(w0, activation, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(w1, activation, sum[r][1]);
    }
  }
  add_sums<R>(sum, sums, sums_stride);
}

// The products of some pairs, First the first of them, in the order of the stream.
template <int K, int R, int First, int N, int... Pairs>
ONECARD_INLINE void multiply_pairs(const __m256 (&w)[N], const byte* x, __m256 (&sum)[R][2],
                                   std::integer_sequence<int, Pairs...>) {
  const auto one = [&](auto idx) __attribute__((always_inline)) {
    constexpr int kIdx = decltype(idx)::value;
    using Shape = PairShape<K, First + kIdx>;
    for (int r = 0; r < R; ++r) {
      const byte* const in = x + r * kF32RowBytes + 4 * Shape::kStreamRow;
      __m256& s = sum[r][Shape::kHalf];
      s = _mm256_fmadd_ps(w[2 * kIdx + 1], broadcast(in + 4),
                          _mm256_fmadd_ps(w[2 * kIdx], broadcast(in), s));
      pin(s);  // stays in a register: GCC 12 would spill it rather than a constant
    }
  };
  (one(std::integral_constant<int, Pairs>()), ...);
}

// The same without a panel, four pairs of states at a time.
template <int K, Codebook B, int R>
ONECARD_INLINE void decode_and_multiply(const Exl3Strips& a, const byte* tiles, float* sums) {
  constexpr int kPairs = 4;
  __m256 sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
#pragma GCC unroll 1
  for (int kt = 0; kt < kTilesPerStrip; ++kt) {
    const Words<K> words = load_words<K>(tiles + kt * a.tile_stride_bytes);
    const byte* const x = a.activations + 64 * kt;
    __m256i states[2 * kPairs];
    each_pair([&](auto pair) __attribute__((always_inline)) {
      constexpr int kPair = decltype(pair)::value, kAt = 2 * (kPair % kPairs);
      using Shape = PairShape<K, kPair>;
      const __m256i both = window<K, kPair>(words);
      states[kAt] = single_state(both, Shape::kShift0);
      states[kAt + 1] = single_state(both, Shape::kShift1);
      if constexpr (kAt + 2 == 2 * kPairs) {
        __m256 w[2 * kPairs];
        codebook_values<B>(states, w);
        multiply_pairs<K, R, kPair + 1 - kPairs>(w, x, sum,
                                                 std::make_integer_sequence<int, kPairs>());
      }
    });
  }
  add_sums<R>(sum, sums, a.sums_stride);
}

// ---- both

template <int RowsAtOnce, int RowBytes, typename Panel>
ONECARD_INLINE void multiply_rows(const Panel& panel, const Exl3Strips& a, int strip) {
  float* const sums = a.sums + 16 * strip;
  int r = 0;
  for (; r + RowsAtOnce <= a.rows; r += RowsAtOnce)
    multiply<RowsAtOnce>(panel, a.activations + r * RowBytes, a.scales + r,
                         sums + r * a.sums_stride, a.sums_stride);
  const byte* const x = a.activations + r * RowBytes;
  const float* const scales = a.scales + r;
  float* const out = sums + r * a.sums_stride;
  switch (a.rows - r) {
    case 1:
      return multiply<1>(panel, x, scales, out, a.sums_stride);
    case 2:
      return multiply<2>(panel, x, scales, out, a.sums_stride);
    case 3:
      return multiply<3>(panel, x, scales, out, a.sums_stride);
    case 4:
      return multiply<4>(panel, x, scales, out, a.sums_stride);
    case 5:
      return multiply<5>(panel, x, scales, out, a.sums_stride);
    default:
      return;
  }
}

template <int K>
void panel16(const Exl3Strips& a) {
  // 8 sums, 2 weights and the activations and products on their way: GCC 12 spills with more.
  constexpr int kRowsAtOnce = 4;
  Panel16 panel;
  for (int strip = 0; strip < a.num_strips; ++strip) {
    const byte* const tiles = a.tiles + strip * a.strip_stride_bytes;
    prefetch(tiles, a.prefetch_bytes, kTilesPerStrip * 32 * K);
    decode<K>(tiles, a.tile_stride_bytes, panel);
    multiply_rows<kRowsAtOnce, 256>(panel, a, strip);
  }
}

template <int K, Codebook B, int R>
void direct_f32(const Exl3Strips& a) {
  for (int strip = 0; strip < a.num_strips; ++strip) {
    const byte* const tiles = a.tiles + strip * a.strip_stride_bytes;
    prefetch(tiles, a.prefetch_bytes, kTilesPerStrip * 32 * K);
    decode_and_multiply<K, B, R>(a, tiles, a.sums + 16 * strip);
  }
}

template <int K, Codebook B>
void panel_f32(const Exl3Strips& a) {
  constexpr int kRowsAtOnce = 6;
  if (a.rows == 1) return direct_f32<K, B, 1>(a);
  if (a.rows == 2) return direct_f32<K, B, 2>(a);
  PanelF32 panel;
  for (int strip = 0; strip < a.num_strips; ++strip) {
    const byte* const tiles = a.tiles + strip * a.strip_stride_bytes;
    prefetch(tiles, a.prefetch_bytes, kTilesPerStrip * 32 * K);
    decode<K, B>(tiles, a.tile_stride_bytes, panel);
    multiply_rows<kRowsAtOnce, kF32RowBytes>(panel, a, strip);
  }
}

template <int K>
constexpr Exl3Kernel kernel16() {
  return {"avx2 panel",
          onecard::cpu::Isa::kAvx2,
          Exl3Precision::kInt16,
          Codebook::kMul1,
          K,
          kExl3MaxRows,
          Exl3Activations::kNatural16,
          256,
          kExl3Int16Limit,
          panel16<K>};
}
template <int K, Codebook B>
constexpr Exl3Kernel kernel_f32() {
  return {"avx2 f32",
          onecard::cpu::Isa::kAvx2,
          Exl3Precision::kF32,
          B,
          K,
          kExl3MaxRows,
          Exl3Activations::kStreamF32,
          512,
          0,
          panel_f32<K, B>};
}

template <int... I>
struct Tables {
  static constexpr Exl3Kernel kKernels[] = {
      kernel16<I + 1>()..., kernel_f32<I + 1, Codebook::kMul1>()...,
      kernel_f32<I + 1, Codebook::kMcg>()..., kernel_f32<I + 1, Codebook::k3Inst>()...};
};
template <int... I>
constexpr KernelTable table(std::integer_sequence<int, I...>) {
  return {Tables<I...>::kKernels, sizeof(Tables<I...>::kKernels) / sizeof(Exl3Kernel)};
}

}  // namespace

constinit const KernelTable kAvx2PanelKernels = table(std::make_integer_sequence<int, 8>());

}  // namespace onecard::ops::cpu_exl3
