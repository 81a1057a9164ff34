// AVX2 kernels for more rows, and for every K and codebook: a strip is decoded once into a panel
// that stays in the first-level cache, then every row is multiplied by it.
//
// Decoding runs over columns. Column pair (c, c + 8) of a tile is K consecutive words of the
// stream, so word i of all eight pairs makes a vector, and the states of one row and half lie at
// the same bits of it. Two neighbouring states (rows 2p, 2p + 1) span at most 24 bits and are cut
// out together, as the two halves of a dword.
#include <immintrin.h>

#include <utility>

#include "ops/cpu/exl3_isa.h"

namespace onecard::ops::cpu_exl3 {
namespace {

using exl3::Codebook;
using std::byte;

#define ONECARD_INLINE inline __attribute__((always_inline))

constexpr int kTilesPerStrip = 8;
constexpr int kRowPairs = 64;                              // of a strip
constexpr uint32_t kMul1 = 0x83DCD12D, kMcg = 0xCBAC1FED;  // as in quant/exl3/codebook.h
constexpr uint32_t k3InstMultiplier = 89226354, k3InstAddend = 64248484;

ONECARD_INLINE __m256i load256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
ONECARD_INLINE __m128i load128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
ONECARD_INLINE __m256i two_lanes(const byte* low, const byte* high) {
  return _mm256_blend_epi32(_mm256_broadcastsi128_si256(load128(high)),
                            _mm256_castsi128_si256(load128(low)), 0x0f);
}

// word[1 + i]: word i of the eight column pairs; word[0]: the one before their first.
template <int K>
struct Words {
  __m256i word[K + 1];
};

template <int K>
ONECARD_INLINE Words<K> load_words(const byte* tile) {
  Words<K> w;
  if constexpr (K == 1) {
    w.word[1] = load256(tile);
  } else if constexpr (K == 2) {
    const __m256 a = _mm256_castsi256_ps(load256(tile)),
                 b = _mm256_castsi256_ps(load256(tile + 32));
    w.word[1] = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), 0xd8);
    w.word[2] = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
  } else if constexpr (K == 3) {
    // Every third word of 24: two blends bring them into one register, a permute into order.
    const __m256i a = load256(tile), b = load256(tile + 32), c = load256(tile + 64);
    const __m256i s0 = _mm256_blend_epi32(_mm256_blend_epi32(a, b, 0x92), c, 0x24);
    const __m256i s1 = _mm256_blend_epi32(_mm256_blend_epi32(a, b, 0x24), c, 0x49);
    const __m256i s2 = _mm256_blend_epi32(_mm256_blend_epi32(a, b, 0x49), c, 0x92);
    w.word[1] = _mm256_permutevar8x32_epi32(s0, _mm256_setr_epi32(0, 3, 6, 1, 4, 7, 2, 5));
    w.word[2] = _mm256_permutevar8x32_epi32(s1, _mm256_setr_epi32(1, 4, 7, 2, 5, 0, 3, 6));
    w.word[3] = _mm256_permutevar8x32_epi32(s2, _mm256_setr_epi32(2, 5, 0, 3, 6, 1, 4, 7));
  } else if constexpr (K == 4) {
    const __m256i a = two_lanes(tile, tile + 64), b = two_lanes(tile + 16, tile + 80);
    const __m256i c = two_lanes(tile + 32, tile + 96), d = two_lanes(tile + 48, tile + 112);
    const __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
    const __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    w.word[1] = _mm256_unpacklo_epi64(ab0, cd0);
    w.word[2] = _mm256_unpackhi_epi64(ab0, cd0);
    w.word[3] = _mm256_unpacklo_epi64(ab1, cd1);
    w.word[4] = _mm256_unpackhi_epi64(ab1, cd1);
  } else {
    const __m256i column =
        _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(K));
    const int* const words = reinterpret_cast<const int*>(tile);
    for (int i = 0; i < K; ++i) w.word[1 + i] = _mm256_i32gather_epi32(words + i, column, 4);
  }
  w.word[0] = _mm256_permutevar8x32_epi32(w.word[K], _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6));
  return w;
}

// The states of positions 2p and 2p + 1 end (2p + 1) K and (2p + 2) K bits after the column pair's
// first bit. They are cut out of a dword that begins at a whole word if one holds both, else at
// half a word, else at a byte.
constexpr int round_down(int value, int step) { return (value + 64) / step * step - 64; }
constexpr int dword_begin(int bits, int pair) {
  const int begin = (2 * pair + 1) * bits - 16, end = (2 * pair + 2) * bits;
  for (int step : {32, 16})
    if (end <= round_down(begin, step) + 32) return round_down(begin, step);
  return round_down(begin, 8);
}

template <int K, int Pair>
ONECARD_INLINE __m256i state_pair(const Words<K>& w) {
  constexpr int kBegin = dword_begin(K, Pair);
  constexpr int kWord = round_down(kBegin, 32) / 32 + 1, kBit = kBegin - round_down(kBegin, 32);
  __m256i window = w.word[kWord];
  if constexpr (kBit != 0)
    window = _mm256_or_si256(_mm256_slli_epi32(window, kBit),
                             _mm256_srli_epi32(w.word[kWord + 1], 32 - kBit));
  constexpr int kShift0 = kBegin + 32 - (2 * Pair + 1) * K;
  constexpr int kShift1 = kBegin + 32 - (2 * Pair + 2) * K;
  return _mm256_blend_epi16(_mm256_srli_epi32(window, kShift0),
                            _mm256_slli_epi32(window, 16 - kShift1), 0xaa);
}

// Calls use(row pair 0..7 of the tile, column half, state pair) for the 16 pairs of a tile.
template <int K, typename Use, int... Pairs>
ONECARD_INLINE void each_pair(const byte* tile, const Use& use,
                              std::integer_sequence<int, Pairs...>) {
  const Words<K> words = load_words<K>(tile);
  (use(Pairs / 4 + 4 * (Pairs & 1), Pairs >> 1 & 1, state_pair<K, Pairs>(words)), ...);
}

ONECARD_INLINE void prefetch(const byte* strip, int ahead, int strip_bytes) {
  if (ahead == 0) return;
  for (int i = 0; i < strip_bytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(strip) + ahead + i, _MM_HINT_T0);
}

// ---- MUL1: 16-bit byte sums, int32 dots --------------------------------------------------------

struct alignas(64) Panel16 {
  int16_t sums[kRowPairs][16][2];  // rows 2p, 2p + 1 of a column side by side
};

template <int K>
ONECARD_INLINE void decode(const byte* tiles, int64_t tile_stride_bytes, Panel16& panel) {
  const __m256i ones = _mm256_set1_epi8(1);
  const __m256i ml = _mm256_set1_epi16(short(kMul1 & 0xffff));
  const __m256i mh = _mm256_set1_epi16(short(kMul1 >> 16));
  for (int kt = 0; kt < kTilesPerStrip; ++kt) {
    const auto store = [&](int row_pair, int half, __m256i state) __attribute__((always_inline)) {
      const __m256i lo = _mm256_mullo_epi16(state, ml);
      const __m256i hi =
          _mm256_add_epi16(_mm256_mulhi_epu16(state, ml), _mm256_mullo_epi16(state, mh));
      _mm256_store_si256(
          reinterpret_cast<__m256i*>(panel.sums[8 * kt + row_pair][8 * half]),
          _mm256_add_epi16(_mm256_maddubs_epi16(lo, ones), _mm256_maddubs_epi16(hi, ones)));
    };
    each_pair<K>(tiles + kt * tile_stride_bytes, store, std::make_integer_sequence<int, 16>());
  }
}

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

// ---- every codebook: exact values in f32 -------------------------------------------------------

struct alignas(64) PanelF32 {
  float values[2 * kRowPairs][16];
};

// p: 32-bit products of eight states. fp16 numbers are made and rounded as the format says.
template <Codebook B>
ONECARD_INLINE __m256 codebook_values(__m256i state) {
  if constexpr (B == Codebook::kMul1) {
    const __m256i p = _mm256_mullo_epi32(state, _mm256_set1_epi32(int(kMul1)));
    const __m256i byte_sum =
        _mm256_madd_epi16(_mm256_maddubs_epi16(p, _mm256_set1_epi8(1)), _mm256_set1_epi16(1));
    // (1024 + sum) * kinv + kbias with one rounding to fp16: exact in f32 before it.
    const __m256 value =
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(byte_sum), _mm256_set1_ps(0.00676727294921875f),
                        _mm256_set1_ps(-3.453125f));
    return _mm256_cvtph_ps(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  } else {
    __m256i p = _mm256_mullo_epi32(
        state, _mm256_set1_epi32(int(B == Codebook::kMcg ? kMcg : k3InstMultiplier)));
    if constexpr (B == Codebook::k3Inst)
      p = _mm256_add_epi32(p, _mm256_set1_epi32(int(k3InstAddend)));
    p = _mm256_xor_si256(_mm256_and_si256(p, _mm256_set1_epi32(int(0x8FFF8FFF))),
                         _mm256_set1_epi32(0x3B603B60));
    const __m256i low = _mm256_and_si256(p, _mm256_set1_epi32(0xffff)),
                  high = _mm256_srli_epi32(p, 16);
    // packus works in 128-bit lanes: low, high | low, high.
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    const __m256 value = _mm256_add_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                                       _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
    return _mm256_cvtph_ps(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
}

template <int K, Codebook B>
ONECARD_INLINE void decode(const byte* tiles, int64_t tile_stride_bytes, PanelF32& panel) {
  for (int kt = 0; kt < kTilesPerStrip; ++kt) {
    const auto store = [&](int row_pair, int half, __m256i state) __attribute__((always_inline)) {
      float* const out = panel.values[16 * kt + 2 * row_pair] + 8 * half;
      _mm256_store_ps(out, codebook_values<B>(_mm256_and_si256(state, _mm256_set1_epi32(0xffff))));
      _mm256_store_ps(out + 16, codebook_values<B>(_mm256_srli_epi32(state, 16)));
    };
    each_pair<K>(tiles + kt * tile_stride_bytes, store, std::make_integer_sequence<int, 16>());
  }
}

template <int R>
ONECARD_INLINE void multiply(const PanelF32& panel, const byte* x, const float*, float* sums,
                             int64_t sums_stride) {
  constexpr int64_t kRowBytes = 512;
  __m256 sum[R][2];
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
#pragma GCC unroll 2
  for (int k = 0; k < 2 * kRowPairs; ++k) {
    const __m256 w0 = _mm256_load_ps(panel.values[k]), w1 = _mm256_load_ps(panel.values[k] + 8);
    for (int r = 0; r < R; ++r) {
      float value;
      __builtin_memcpy(&value, x + r * kRowBytes + 4 * k, 4);
      const __m256 activation = _mm256_set1_ps(value);
      sum[r][0] = _mm256_fmadd_ps(w0, activation, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(w1, activation, sum[r][1]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < 2; ++h) {
      float* const out = sums + r * sums_stride + 8 * h;
      _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), sum[r][h]));
    }
}

// ---- both --------------------------------------------------------------------------------------

template <typename Panel, int RowBytes>
ONECARD_INLINE void multiply_rows(const Panel& panel, const Exl3Strips& a, int strip) {
  float* const sums = a.sums + 16 * strip;
  // 8 sums, 2 weights and the activations and products on their way: GCC 12 spills with more.
  constexpr int kRowsAtOnce = 4;
  int r = 0;
  for (; r + kRowsAtOnce <= a.rows; r += kRowsAtOnce)
    multiply<kRowsAtOnce>(panel, a.activations + r * RowBytes, a.scales + r,
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
    default:
      return;
  }
}

template <int K>
void panel16(const Exl3Strips& a) {
  Panel16 panel;
  for (int strip = 0; strip < a.num_strips; ++strip) {
    const byte* const tiles = a.tiles + strip * a.strip_stride_bytes;
    prefetch(tiles, a.prefetch_bytes, kTilesPerStrip * 32 * K);
    decode<K>(tiles, a.tile_stride_bytes, panel);
    multiply_rows<Panel16, 256>(panel, a, strip);
  }
}

template <int K, Codebook B>
void panel_f32(const Exl3Strips& a) {
  PanelF32 panel;
  for (int strip = 0; strip < a.num_strips; ++strip) {
    const byte* const tiles = a.tiles + strip * a.strip_stride_bytes;
    prefetch(tiles, a.prefetch_bytes, kTilesPerStrip * 32 * K);
    decode<K, B>(tiles, a.tile_stride_bytes, panel);
    multiply_rows<PanelF32, 512>(panel, a, strip);
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
          Exl3Activations::kNaturalF32,
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
