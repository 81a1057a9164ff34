// AVX-512 F/BW/VL/DQ and VNNI, no VBMI: int16 activations, one to four rows.
//
// A zmm register holds four columns, one a 128-bit lane; the four dwords of a lane are the row
// groups, as in the AVX2 direct kernels (exl3_avx2_direct.cpp explains the windows). Quad 0 is
// columns 0..3 and 8..11, quad 1 columns 4..7 and 12..15.
#include <immintrin.h>

#include "ops/cpu/exl3_isa.h"

namespace onecard::ops::cpu_exl3 {
namespace {

using std::byte;

#define ONECARD_INLINE inline __attribute__((always_inline))

constexpr int kTilesPerStrip = 8;
constexpr uint32_t kMultiplier = 0x83DCD12D;  // exl3::kMul1Multiplier

constexpr int window_begin(int bits, int j) {
  return bits == 2 || j < 4 ? -2 : bits == 3 ? -1 : 0;  // bytes after the lane's first
}
constexpr int state_shift(int bits, int j) {
  return 8 * window_begin(bits, j) + 32 - (j + 1) * bits;
}

struct alignas(64) Tables {
  uint32_t dwords[2][16];  // of a quad: per column the four dwords from the one before its first
  uint8_t windows[2][64];  // within a column's 16 bytes: the lower and the upper states' windows
};

constexpr Tables make_tables(int bits) {
  Tables t{};
  const int num_dwords = 8 * bits;
  for (int quad = 0; quad < 2; ++quad)
    for (int c = 0; c < 4; ++c)
      for (int i = 0; i < 4; ++i)
        t.dwords[quad][4 * c + i] =
            uint32_t((bits * (4 * quad + c) - 1 + i + num_dwords) % num_dwords);
  for (int half = 0; half < 2; ++half)
    for (int c = 0; c < 4; ++c)
      for (int group = 0; group < 4; ++group)
        for (int k = 0; k < 4; ++k)
          t.windows[half][16 * c + 4 * group + k] =
              uint8_t((bits * group + window_begin(bits, 4 * half) + (3 - k) + 4) ^ 3);
  return t;
}

template <int K>
constexpr Tables kTables = make_tables(K);

struct Windows {
  __m512i state[2][2];  // [quad][lower or upper four states]
};

template <int K>
ONECARD_INLINE Windows load_windows(const byte* tile) {
  const __m512i dwords0 = _mm512_load_si512(kTables<K>.dwords[0]);
  const __m512i dwords1 = _mm512_load_si512(kTables<K>.dwords[1]);
  Windows w;
  if constexpr (K == 4) {
    // Upper states: the lane's own dword. Lower: the low half of the dword before it and the high
    // half of this one.
    const __m512i own0 = _mm512_loadu_si512(tile), own1 = _mm512_loadu_si512(tile + 64);
    const __m512i before0 = _mm512_permutex2var_epi32(own0, dwords0, own1);
    const __m512i before1 = _mm512_permutex2var_epi32(own0, dwords1, own1);
    const __mmask32 odd = 0xaaaaaaaa;
    w.state[0][0] = _mm512_rol_epi32(_mm512_mask_blend_epi16(odd, before0, own0), 16);
    w.state[1][0] = _mm512_rol_epi32(_mm512_mask_blend_epi16(odd, before1, own1), 16);
    w.state[0][1] = own0;
    w.state[1][1] = own1;
  } else {
    const __m512i lower = _mm512_load_si512(kTables<K>.windows[0]);
    const __m512i upper = _mm512_load_si512(kTables<K>.windows[1]);
    const __m512i first = _mm512_loadu_si512(tile);
    __m512i source[2];
    if constexpr (K == 2) {
      source[0] = _mm512_permutexvar_epi32(dwords0, first);
      source[1] = _mm512_permutexvar_epi32(dwords1, first);
    } else {
      const __m512i rest =
          _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + 64)));
      source[0] = _mm512_permutex2var_epi32(first, dwords0, rest);
      source[1] = _mm512_permutex2var_epi32(first, dwords1, rest);
    }
    for (int quad = 0; quad < 2; ++quad) {
      w.state[quad][0] = _mm512_shuffle_epi8(source[quad], lower);
      w.state[quad][1] = K == 2 ? w.state[quad][0] : _mm512_shuffle_epi8(source[quad], upper);
    }
  }
  return w;
}

// Four partial sums of each column; q0 and q1: quads 0 and 1, for columns 0..7 and 8..15.
ONECARD_INLINE void add_sums(__m512i q0, __m512i q1, __m512i q0_high, __m512i q1_high, float scale,
                             float* sums) {
  const __m512i low =
      _mm512_add_epi32(_mm512_unpacklo_epi32(q0, q1), _mm512_unpackhi_epi32(q0, q1));
  const __m512i high = _mm512_add_epi32(_mm512_unpacklo_epi32(q0_high, q1_high),
                                        _mm512_unpackhi_epi32(q0_high, q1_high));
  // Lane c: the sums of columns c, 4 + c, 8 + c and 12 + c.
  const __m512i lanes =
      _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512 sum = _mm512_cvtepi32_ps(_mm512_permutexvar_epi32(order, lanes));
  _mm512_storeu_ps(sums,
                   _mm512_add_ps(_mm512_loadu_ps(sums), _mm512_mul_ps(sum, _mm512_set1_ps(scale))));
}

ONECARD_INLINE void prefetch(const byte* strip, int ahead, int strip_bytes) {
  if (ahead == 0) return;
  for (int i = 0; i < strip_bytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(strip) + ahead + i, _MM_HINT_T0);
}

template <int K, int M>
void word(const Exl3Strips& a) {
  constexpr int kRowBytes = 256;
  const __m512i ones = _mm512_set1_epi8(1), low_half = _mm512_set1_epi32(0xffff);
  const __m512i ml = _mm512_set1_epi16(short(kMultiplier & 0xffff));
  const __m512i mh = _mm512_set1_epi16(short(kMultiplier >> 16));
  for (int strip = 0; strip < a.num_strips; ++strip) {
    const byte* tile = a.tiles + strip * a.strip_stride_bytes;
    prefetch(tile, a.prefetch_bytes, kTilesPerStrip * 32 * K);
    const byte* x = a.activations;
    __m512i sum[M][2][2];  // [row][quad][columns 0..7 or 8..15]
    for (int m = 0; m < M; ++m)
      for (int i = 0; i < 4; ++i) sum[m][i >> 1][i & 1] = _mm512_setzero_si512();
    Windows next = load_windows<K>(tile);
#pragma GCC unroll 1
    for (int kt = 0; kt < kTilesPerStrip; ++kt, x += 32) {
      const Windows now = next;  // the next tile's windows are made a tile ahead of their use
      if (kt + 1 < kTilesPerStrip) tile += a.tile_stride_bytes;
      next = load_windows<K>(tile);
#pragma GCC unroll 2
      for (int rows8 = 0; rows8 < 2; ++rows8)  // rows 2g, 2g + 1, then those 8 below
#pragma GCC unroll 2
        for (int quad = 0; quad < 2; ++quad)
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            const int j = 4 * half + 2 * rows8;
            const __m512i window = now.state[quad][half];
            // (first & low_half) | (second & ~low_half)
            const __m512i state = _mm512_ternarylogic_epi32(
                low_half, _mm512_srli_epi32(window, state_shift(K, j)),
                _mm512_slli_epi32(window, 16 - state_shift(K, j + 1)), 0xca);
            const __m512i lo = _mm512_mullo_epi16(state, ml);
            const __m512i hi =
                _mm512_add_epi16(_mm512_mulhi_epu16(state, ml), _mm512_mullo_epi16(state, mh));
            const __m512i byte_sum =
                _mm512_add_epi16(_mm512_maddubs_epi16(lo, ones), _mm512_maddubs_epi16(hi, ones));
            for (int m = 0; m < M; ++m)
              sum[m][quad][half] = _mm512_dpwssd_epi32(
                  sum[m][quad][half], byte_sum,
                  _mm512_broadcast_i32x4(_mm_loadu_si128(
                      reinterpret_cast<const __m128i*>(x + m * kRowBytes + 16 * rows8))));
          }
    }
    for (int m = 0; m < M; ++m)
      add_sums(sum[m][0][0], sum[m][1][0], sum[m][0][1], sum[m][1][1], a.scales[m],
               a.sums + m * a.sums_stride + 16 * strip);
  }
}

template <int K>
void word_rows(const Exl3Strips& a) {
  switch (a.rows) {
    case 1:
      return word<K, 1>(a);
    case 2:
      return word<K, 2>(a);
    case 3:
      return word<K, 3>(a);
    default:
      return word<K, 4>(a);
  }
}

template <int K>
constexpr Exl3Kernel word_kernel() {
  return {"avx512 vnni word",
          onecard::cpu::Isa::kAvx512Vnni,
          Exl3Precision::kInt16,
          exl3::Codebook::kMul1,
          K,
          4,
          Exl3Activations::kNatural16,
          256,
          kExl3Int16Limit,
          word_rows<K>};
}

constexpr Exl3Kernel kKernels[] = {word_kernel<2>(), word_kernel<3>(), word_kernel<4>()};

}  // namespace

constinit const KernelTable kVnniKernels{kKernels, sizeof(kKernels) / sizeof(Exl3Kernel)};

}  // namespace onecard::ops::cpu_exl3
