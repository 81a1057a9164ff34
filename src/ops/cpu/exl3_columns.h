// Decoding of EXL3 tiles over columns, for the kernels that keep or use a weight a lane.
//
// Column pair (c, c + 8) of a tile is K consecutive words of the stream, so word i of all eight
// pairs makes a vector, and the states of one row and half lie at the same bits of it. Two
// neighbouring states (rows 2p, 2p + 1) span at most 24 bits and are cut out of one dword.
//
// For sources of AVX2 or wider alone. Everything is always inlined and in an anonymous namespace:
// nothing compiled here for one ISA can be picked by the linker for another.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "quant/exl3/codebook.h"

#define ONECARD_INLINE inline __attribute__((always_inline))

namespace onecard::ops::cpu_exl3 {
namespace {

using exl3::Codebook;
using std::byte;

constexpr int kTilesPerStrip = 8;
constexpr int kRowPairs = 64;                              // of a strip
constexpr int kPairsPerTile = 16;                          // state pairs of a column pair
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

// Where the two states of a pair lie: window() returns the dwords that hold both, and the states
// end kShift0 and kShift1 bits above the dwords' lowest bit.
template <int K, int Pair>
struct PairShape {
  static constexpr int kBegin = dword_begin(K, Pair);
  static constexpr int kShift0 = kBegin + 32 - (2 * Pair + 1) * K;
  static constexpr int kShift1 = kBegin + 32 - (2 * Pair + 2) * K;
  // The pair's rows in a tile, and whether it belongs to column c or c + 8.
  static constexpr int kRowPair = Pair / 4 + 4 * (Pair & 1);  // rows 2 kRowPair, 2 kRowPair + 1
  static constexpr int kHalf = Pair >> 1 & 1;
  static constexpr int kStreamRow = 4 * (Pair / 4) + 2 * (Pair & 1);  // in the order of the stream
};

template <int K, int Pair>
ONECARD_INLINE __m256i window(const Words<K>& w) {
  constexpr int kBegin = PairShape<K, Pair>::kBegin;
  constexpr int kWord = round_down(kBegin, 32) / 32 + 1, kBit = kBegin - round_down(kBegin, 32);
  if constexpr (kBit == 0)
    return w.word[kWord];
  else
    return _mm256_or_si256(_mm256_slli_epi32(w.word[kWord], kBit),
                           _mm256_srli_epi32(w.word[kWord + 1], 32 - kBit));
}

// Both states of a pair as the halves of a dword.
template <int K, int Pair>
ONECARD_INLINE __m256i state_pair(const Words<K>& w) {
  using Shape = PairShape<K, Pair>;
  const __m256i both = window<K, Pair>(w);
  return _mm256_blend_epi16(_mm256_srli_epi32(both, Shape::kShift0),
                            _mm256_slli_epi32(both, 16 - Shape::kShift1), 0xaa);
}

// The state that ends `shift` bits above the window's lowest bit. Two shifts instead of a shift and
// a mask: they leave the multipliers' pipes alone.
ONECARD_INLINE __m256i single_state(__m256i window, int shift) {
  return _mm256_srli_epi32(_mm256_slli_epi32(window, 16 - shift), 16);
}

// Calls use(Pair) for the 16 pairs of a tile in the order of the stream, where Pair is an
// integral_constant.
template <typename Use, int... Pairs>
ONECARD_INLINE void each_pair(const Use& use, std::integer_sequence<int, Pairs...>) {
  (use(std::integral_constant<int, Pairs>()), ...);
}
template <typename Use>
ONECARD_INLINE void each_pair(const Use& use) {
  each_pair(use, std::make_integer_sequence<int, kPairsPerTile>());
}

// MUL1: the byte sums of both states of each dword, as its halves. s * multiplier mod 2^32 is
// mullo(s, ml) | (mulhi(s, ml) + mullo(s, mh)) << 16.
ONECARD_INLINE __m256i byte_sums(__m256i states) {
  const __m256i ones = _mm256_set1_epi8(1);
  const __m256i ml = _mm256_set1_epi16(short(kMul1 & 0xffff));
  const __m256i mh = _mm256_set1_epi16(short(kMul1 >> 16));
  const __m256i lo = _mm256_mullo_epi16(states, ml);
  const __m256i hi =
      _mm256_add_epi16(_mm256_mulhi_epu16(states, ml), _mm256_mullo_epi16(states, mh));
  return _mm256_add_epi16(_mm256_maddubs_epi16(lo, ones), _mm256_maddubs_epi16(hi, ones));
}

// The codebook's values of eight states, exactly as the format makes and rounds them.
template <Codebook B>
ONECARD_INLINE __m256 codebook_values(__m256i state) {
  if constexpr (B == Codebook::kMul1) {
    const __m256i p = _mm256_mullo_epi32(state, _mm256_set1_epi32(int(kMul1)));
    const __m256 sum = _mm256_cvtepi32_ps(
        _mm256_madd_epi16(_mm256_maddubs_epi16(p, _mm256_set1_epi8(1)), _mm256_set1_epi16(1)));
    // (1024 + sum) * kinv + kbias is exact in f32. Adding and taking away 2^13 times as much rounds
    // it to fp16's 11 bits (Veltkamp's splitting); that it does so for all 1,021 sums is tested.
    constexpr float kGain = 0.00676727294921875f, kBias = -3.453125f, kSplit = 8192;
    const __m256 value = _mm256_fmadd_ps(sum, _mm256_set1_ps(kGain), _mm256_set1_ps(kBias));
    const __m256 large =
        _mm256_fmadd_ps(sum, _mm256_set1_ps(kSplit * kGain), _mm256_set1_ps(kSplit * kBias));
    return _mm256_sub_ps(large, _mm256_sub_ps(large, value));
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

// Keeps a value in a register here, and the steps of several values in the order in which they are
// written: the compiler would finish one value after another, and a core that looks ahead over so
// long a chain finds too little to do beside it.
template <typename Vector>
ONECARD_INLINE void pin(Vector& v) {
  asm volatile("" : "+x"(v));
}

// codebook_values() of N vectors of states at once, step by step.
template <Codebook B, int N>
ONECARD_INLINE void codebook_values(__m256i (&states)[N], __m256 (&values)[N]) {
  if constexpr (B != Codebook::kMul1) {
    for (int i = 0; i < N; ++i) values[i] = codebook_values<B>(states[i]);
  } else {
    const auto step = [&](auto&& f) __attribute__((always_inline)) {
      for (auto& s : states) {
        s = f(s);
        pin(s);
      }
    };
    const __m256i multiplier = _mm256_set1_epi32(int(kMul1)), ones = _mm256_set1_epi8(1);
    step([&](__m256i s)
             __attribute__((always_inline)) { return _mm256_mullo_epi32(s, multiplier); });
    step([&](__m256i s) __attribute__((always_inline)) { return _mm256_maddubs_epi16(s, ones); });
    step([](__m256i s)
             __attribute__((always_inline)) { return _mm256_madd_epi16(s, _mm256_set1_epi16(1)); });
    // As above, and exact at each step: the sum becomes 2^23 + sum by its bits, which the bias
    // takes away again, and 2^13 times a value is a matter of its exponent.
    step([](__m256i s) __attribute__((always_inline)) {
      return _mm256_or_si256(s, _mm256_set1_epi32(0x4b000000));
    });
    constexpr float kGain = 0.00676727294921875f, kBias = -3.453125f - 0x1p23f * kGain;
    for (int i = 0; i < N; ++i) {
      values[i] = _mm256_fmadd_ps(_mm256_castsi256_ps(states[i]), _mm256_set1_ps(kGain),
                                  _mm256_set1_ps(kBias));
      pin(values[i]);
    }
    for (auto& value : values) {
      const __m256 large = _mm256_castsi256_ps(
          _mm256_add_epi32(_mm256_castps_si256(value), _mm256_set1_epi32(13 << 23)));
      value = _mm256_sub_ps(large, _mm256_sub_ps(large, value));
      pin(value);
    }
  }
}

ONECARD_INLINE void prefetch(const byte* strip, int ahead, int strip_bytes) {
  if (ahead == 0) return;
  for (int i = 0; i < strip_bytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(strip) + ahead + i, _MM_HINT_T0);
}

// [64 row pairs][16 columns][2]: rows 2p, 2p + 1 of a column side by side.
struct alignas(64) Panel16 {
  int16_t sums[kRowPairs][16][2];
};

template <int K>
ONECARD_INLINE void decode(const byte* tiles, int64_t tile_stride_bytes, Panel16& panel) {
  for (int kt = 0; kt < kTilesPerStrip; ++kt) {
    const Words<K> words = load_words<K>(tiles + kt * tile_stride_bytes);
    each_pair([&](auto pair) __attribute__((always_inline)) {
      using Shape = PairShape<K, decltype(pair)::value>;
      _mm256_store_si256(
          reinterpret_cast<__m256i*>(panel.sums[8 * kt + Shape::kRowPair][8 * Shape::kHalf]),
          byte_sums(state_pair<K, decltype(pair)::value>(words)));
    });
  }
}

// [128 rows, each tile's in the order of the stream][16 columns].
struct alignas(64) PanelF32 {
  float values[2 * kRowPairs][16];
};

template <int K, Codebook B>
ONECARD_INLINE void decode(const byte* tiles, int64_t tile_stride_bytes, PanelF32& panel) {
  for (int kt = 0; kt < kTilesPerStrip; ++kt) {
    const Words<K> words = load_words<K>(tiles + kt * tile_stride_bytes);
    each_pair([&](auto pair) __attribute__((always_inline)) {
      using Shape = PairShape<K, decltype(pair)::value>;
      const __m256i both = window<K, decltype(pair)::value>(words);
      float* const out = panel.values[16 * kt + Shape::kStreamRow] + 8 * Shape::kHalf;
      _mm256_store_ps(out, codebook_values<B>(single_state(both, Shape::kShift0)));
      _mm256_store_ps(out + 16, codebook_values<B>(single_state(both, Shape::kShift1)));
    });
  }
}

}  // namespace
}  // namespace onecard::ops::cpu_exl3
