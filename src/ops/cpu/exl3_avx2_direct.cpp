// AVX2 kernels for one and two rows: every product of a strip stays in registers.
//
// A ymm register holds column c in its low 128-bit lane and column c + 4 in the high one; the four
// dwords of a lane are the row groups. Dword g of column c is a 32-bit window of the stream of
// trellis lane L = 4c + g, most significant bit first, that begins `a` bytes after the lane's own
// first bit. Lane L's 8 weights end K bits apart, so every dword has the same bit phase and one
// uniform shift brings state j of all of them into the low 16 bits.
#include <immintrin.h>

#include "ops/cpu/exl3_isa.h"

namespace onecard::ops::cpu_exl3 {
namespace {

using std::byte;

constexpr int kTilesPerStrip = 8;
constexpr uint32_t kMultiplier = 0x83DCD12D;  // exl3::kMul1Multiplier; its header has inline code

// Which windows hold the 8 states: for K = 2 one that begins 16 bits before the lane; for K = 3
// and 4 a second one for the upper four states.
constexpr int window_begin(int bits, int j) {
  return bits == 2 || j < 4 ? -2 : bits == 3 ? -1 : 0;  // bytes after the lane's first
}
constexpr int state_shift(int bits, int j) {
  return 8 * window_begin(bits, j) + 32 - (j + 1) * bits;
}

struct alignas(32) Shuffle {
  uint8_t index[32];
};

// The window that begins `begin` bytes after each lane, out of 16 bytes that begin 4 before column
// c's first lane. Stream byte i of a tile lies at i ^ 3, and so does that of the 16 bytes.
constexpr Shuffle window_shuffle(int bits, int begin) {
  Shuffle s{};
  for (int lane = 0; lane < 2; ++lane)
    for (int group = 0; group < 4; ++group)
      for (int k = 0; k < 4; ++k)
        s.index[lane * 16 + group * 4 + k] = uint8_t((bits * group + begin + (3 - k) + 4) ^ 3);
  return s;
}

// K = 4: exchanges the halves of every dword.
constexpr Shuffle half_swap() {
  Shuffle s{};
  for (int i = 0; i < 32; ++i) s.index[i] = uint8_t((i % 16) ^ 2);
  return s;
}

constexpr Shuffle kWindows[5][2] = {{},
                                    {},
                                    {window_shuffle(2, -2), window_shuffle(2, -2)},
                                    {window_shuffle(3, -2), window_shuffle(3, -1)},
                                    {half_swap(), half_swap()}};

inline __attribute__((always_inline)) __m128i load128(const byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __attribute__((always_inline)) __m256i load_shuffle(const Shuffle& s) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(s.index));
}
// A blend of a broadcast is cheaper than vinserti128 on every core measured.
inline __attribute__((always_inline)) __m256i two_lanes(__m128i low, const byte* high) {
  return _mm256_blend_epi32(_mm256_broadcastsi128_si256(load128(high)), _mm256_castsi128_si256(low),
                            0x0f);
}

struct Windows {
  __m256i low, high;  // states 0..3 and 4..7; one and the same for K = 2
};

template <int K>
inline __attribute__((always_inline)) Windows load_windows(const byte* tile, int c,
                                                           __m256i shuffle0, __m256i shuffle1) {
  constexpr int kColumnBytes = 4 * K;
  constexpr int kTileBytes = 32 * K;
  // 16 stream bytes from 4 before column c: the first column looks back into the tile's last dword.
  const __m128i low = c == 0 ? _mm_alignr_epi8(load128(tile), load128(tile + kTileBytes - 16), 12)
                             : load128(tile + kColumnBytes * c - 4);
  const __m256i source = two_lanes(low, tile + kColumnBytes * (c + 4) - 4);
  if constexpr (K == 4) {
    // The upper states' window is the lane's own dword; the lower states' is the low half of the
    // dword before it and the high half of this one.
    const __m256i own = two_lanes(load128(tile + kColumnBytes * c), tile + kColumnBytes * (c + 4));
    return {_mm256_shuffle_epi8(_mm256_blend_epi16(source, own, 0xaa), shuffle0), own};
  }
  const __m256i first = _mm256_shuffle_epi8(source, shuffle0);
  return {first, K == 2 ? first : _mm256_shuffle_epi8(source, shuffle1)};
}

// parts[c][h]: four int32 partial sums each of column c and c + 4 (+ 8 for h = 1).
inline __attribute__((always_inline)) void add_sums(const __m256i (&parts)[4][2], float scale,
                                                    float* sums) {
  for (int h = 0; h < 2; ++h) {
    const __m256i sum = _mm256_hadd_epi32(_mm256_hadd_epi32(parts[0][h], parts[1][h]),
                                          _mm256_hadd_epi32(parts[2][h], parts[3][h]));
    float* const out = sums + 8 * h;
    _mm256_storeu_ps(out,
                     _mm256_add_ps(_mm256_loadu_ps(out),
                                   _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(scale))));
  }
}

inline __attribute__((always_inline)) void prefetch(const byte* strip, int ahead, int strip_bytes) {
  if (ahead == 0) return;
  for (int i = 0; i < strip_bytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(strip) + ahead + i, _MM_HINT_T0);
}

// One row: a 32-bit product a weight, its four bytes summed by two multiply-adds.
template <int K>
void dword(const Exl3Strips& a) {
  const __m256i shuffle0 = load_shuffle(kWindows[K][0]), shuffle1 = load_shuffle(kWindows[K][1]);
  const __m256i ones = _mm256_set1_epi8(1), multiplier = _mm256_set1_epi32(int(kMultiplier));
  for (int strip = 0; strip < a.num_strips; ++strip) {
    const byte* const tiles = a.tiles + strip * a.strip_stride_bytes;
    prefetch(tiles, a.prefetch_bytes, kTilesPerStrip * 32 * K);
    __m256i parts[4][2];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      const byte* tile = tiles;
      const byte* x = a.activations;
      Windows next = load_windows<K>(tile, c, shuffle0, shuffle1);
#pragma GCC unroll 1
      for (int kt = 0; kt < kTilesPerStrip; ++kt, x += 64) {
        const Windows now = next;  // the next tile's windows are made a tile ahead of their use
        if (kt + 1 < kTilesPerStrip) tile += a.tile_stride_bytes;
        next = load_windows<K>(tile, c, shuffle0, shuffle1);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
          // Two shifts instead of a shift and a mask: the mask would compete for the multipliers.
          const __m256i state = _mm256_srli_epi32(
              _mm256_slli_epi32(j < 4 ? now.low : now.high, 16 - state_shift(K, j)), 16);
          const __m256i product = _mm256_mullo_epi32(state, multiplier);
          const __m256i activation = _mm256_broadcastsi128_si256(load128(x + 16 * (j & 3)));
          sum[j >> 2] = _mm256_add_epi32(
              sum[j >> 2], _mm256_madd_epi16(_mm256_maddubs_epi16(product, ones), activation));
        }
      }
      parts[c][0] = sum[0];
      parts[c][1] = sum[1];
    }
    add_sums(parts, a.scales[0], a.sums + 16 * strip);
  }
}

// Two states of one window as the two halves of a dword: rows 2p and 2p + 1.
template <int K>
inline __attribute__((always_inline)) __m256i state_pair(const Windows& w, int pair) {
  const int low = state_shift(K, 2 * pair), high = state_shift(K, 2 * pair + 1);
  const __m256i window = pair < 2 ? w.low : w.high;
  return _mm256_blend_epi16(_mm256_srli_epi32(window, low), _mm256_slli_epi32(window, 16 - high),
                            0xaa);
}

// M rows: the byte sum of a weight is made once, in 16 bits; each row costs a multiply-add and an
// add for 16 weights. s * multiplier mod 2^32 is mullo(s, ml) | (mulhi(s, ml) + mullo(s, mh))
// << 16.
template <int K, int M>
void word(const Exl3Strips& a) {
  constexpr int kRowBytes = 256;
  const __m256i shuffle0 = load_shuffle(kWindows[K][0]), shuffle1 = load_shuffle(kWindows[K][1]);
  const __m256i ones = _mm256_set1_epi8(1);
  const __m256i ml = _mm256_set1_epi16(short(kMultiplier & 0xffff));
  const __m256i mh = _mm256_set1_epi16(short(kMultiplier >> 16));
  for (int strip = 0; strip < a.num_strips; ++strip) {
    const byte* const tiles = a.tiles + strip * a.strip_stride_bytes;
    prefetch(tiles, a.prefetch_bytes, kTilesPerStrip * 32 * K);
    __m256i parts[M][4][2];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m256i sum[M][2];
      for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = _mm256_setzero_si256();
      const byte* tile = tiles;
      const byte* x = a.activations;
      Windows next = load_windows<K>(tile, c, shuffle0, shuffle1);
#pragma GCC unroll 1
      for (int kt = 0; kt < kTilesPerStrip; ++kt, x += 32) {
        const Windows now = next;
        if (kt + 1 < kTilesPerStrip) tile += a.tile_stride_bytes;
        next = load_windows<K>(tile, c, shuffle0, shuffle1);
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; ++pair) {
          const __m256i state = state_pair<K>(now, pair);
          const __m256i lo = _mm256_mullo_epi16(state, ml);
          const __m256i hi =
              _mm256_add_epi16(_mm256_mulhi_epu16(state, ml), _mm256_mullo_epi16(state, mh));
          const __m256i byte_sum =
              _mm256_add_epi16(_mm256_maddubs_epi16(lo, ones), _mm256_maddubs_epi16(hi, ones));
          for (int m = 0; m < M; ++m) {
            const __m256i activation =
                _mm256_broadcastsi128_si256(load128(x + m * kRowBytes + 16 * (pair & 1)));
            sum[m][pair >> 1] =
                _mm256_add_epi32(sum[m][pair >> 1], _mm256_madd_epi16(byte_sum, activation));
          }
        }
      }
      for (int m = 0; m < M; ++m) {
        parts[m][c][0] = sum[m][0];
        parts[m][c][1] = sum[m][1];
      }
    }
    for (int m = 0; m < M; ++m)
      add_sums(parts[m], a.scales[m], a.sums + m * a.sums_stride + 16 * strip);
  }
}

template <int K>
void word_rows(const Exl3Strips& a) {
  return a.rows == 1 ? word<K, 1>(a) : word<K, 2>(a);
}

template <int K>
constexpr Exl3Kernel dword_kernel() {
  return {"avx2 dword",
          onecard::cpu::Isa::kAvx2,
          Exl3Precision::kInt16,
          exl3::Codebook::kMul1,
          K,
          1,
          Exl3Activations::kDoubled16,
          512,
          kExl3Int16Limit,
          dword<K>};
}
template <int K>
constexpr Exl3Kernel word_kernel() {
  return {"avx2 word",
          onecard::cpu::Isa::kAvx2,
          Exl3Precision::kInt16,
          exl3::Codebook::kMul1,
          K,
          2,
          Exl3Activations::kNatural16,
          256,
          kExl3Int16Limit,
          word_rows<K>};
}

constexpr Exl3Kernel kKernels[] = {word_kernel<2>(),  word_kernel<3>(),  word_kernel<4>(),
                                   dword_kernel<2>(), dword_kernel<3>(), dword_kernel<4>()};

}  // namespace

constinit const KernelTable kAvx2DirectKernels{kKernels, std::size(kKernels)};

}  // namespace onecard::ops::cpu_exl3
