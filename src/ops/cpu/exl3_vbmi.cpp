// AVX-512 VBMI and VNNI: int16 and int8 activations, one to eight rows.
//
// A qword a column, most significant bit first, that holds every state of two trellis lanes (K = 2
// and 3) or of one (K = 4); vpmultishiftqb cuts four 16-bit windows out of each. The eight columns
// of a register are 0..7; the states of columns 8..15 are the upper four of the same lanes.
#include <immintrin.h>

#include "ops/cpu/exl3_isa.h"

namespace onecard::ops::cpu_exl3 {
namespace {

using std::byte;

#define ONECARD_INLINE inline __attribute__((always_inline))

constexpr int kTilesPerStrip = 8;
constexpr uint32_t kMultiplier = 0x83DCD12D;  // exl3::kMul1Multiplier

constexpr int lanes_per_qword(int bits) { return bits <= 3 ? 2 : 1; }

struct alignas(64) Tables {
  uint8_t qwords[4][64];   // stream bytes of the qwords; 4 / lanes_per_qword of them are used
  uint64_t windows[2][2];  // [lane of the qword][half]: where its four states begin and end
};

constexpr Tables make_tables(int bits) {
  Tables t{};
  const int tile_bytes = 32 * bits, lanes = lanes_per_qword(bits);
  for (int q = 0; q < 4 / lanes; ++q)
    for (int c = 0; c < 8; ++c)
      for (int k = 0; k < 8; ++k) {  // byte k of the little-endian qword is stream byte 7 - k
        const int stream =
            (4 * bits * c + bits * lanes * q - 2 + (7 - k) + tile_bytes) % tile_bytes;
        t.qwords[q][8 * c + k] = uint8_t(stream ^ 3);
      }
  for (int lane = 0; lane < lanes; ++lane)
    for (int half = 0; half < 2; ++half)
      for (int j = 0; j < 4; ++j) {
        // The state ends bits * (8 lane + 4 half + j + 1) after the lane's first bit, and the qword
        // begins 16 bits before that: 48 bits less than its length are to its right.
        const uint64_t shift = uint64_t(48 - bits * (8 * lane + 4 * half + j + 1)) & 63;
        t.windows[lane][half] |= (shift | ((shift + 8) & 63) << 8) << (16 * j);
      }
  return t;
}

template <int K>
constexpr Tables kTables = make_tables(K);

template <int K>
struct Qwords {
  __m512i q[4 / lanes_per_qword(K)];
};

template <int K>
ONECARD_INLINE Qwords<K> load_qwords(const byte* tile) {
  Qwords<K> w;
  const __m512i first = _mm512_loadu_si512(tile);
  for (int q = 0; q < 4 / lanes_per_qword(K); ++q) {
    const __m512i index = _mm512_load_si512(kTables<K>.qwords[q]);
    if constexpr (K == 2)
      w.q[q] = _mm512_permutexvar_epi8(index, first);
    else if constexpr (K == 3)
      w.q[q] = _mm512_permutex2var_epi8(
          first, index,
          _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + 64))));
    else
      w.q[q] = _mm512_permutex2var_epi8(first, index, _mm512_loadu_si512(tile + 64));
  }
  return w;
}

// Two partial sums of each column: low: columns 0..7, high: columns 8..15.
ONECARD_INLINE void add_sums(__m512i low, __m512i high, float scale, float* sums) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  const __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi32(low, even, high),
                                       _mm512_permutex2var_epi32(low, odd, high));
  _mm512_storeu_ps(sums,
                   _mm512_add_ps(_mm512_loadu_ps(sums),
                                 _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scale))));
}

ONECARD_INLINE __m512i broadcast64(const byte* p) {
  long long value;
  __builtin_memcpy(&value, p, 8);
  return _mm512_set1_epi64(value);
}

ONECARD_INLINE void prefetch(const byte* strip, int ahead, int strip_bytes) {
  if (ahead == 0) return;
  for (int i = 0; i < strip_bytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(strip) + ahead + i, _MM_HINT_T0);
}

template <int K, int M, bool kInt8>
void multishift(const Exl3Strips& a) {
  constexpr int kRowBytes = 256;
  constexpr int kLanes = lanes_per_qword(K);
  constexpr int kSets = M == 1 ? 2 : 1;  // independent chains of sums, where there is room
  const __m512i ones = _mm512_set1_epi8(1);
  const __m512i ml = _mm512_set1_epi16(short(kMultiplier & 0xffff));
  const __m512i mh = _mm512_set1_epi16(short(kMultiplier >> 16));
  __m512i windows[2][2];
  for (int lane = 0; lane < kLanes; ++lane)
    for (int half = 0; half < 2; ++half)
      windows[lane][half] = _mm512_set1_epi64((long long)kTables<K>.windows[lane][half]);
  for (int strip = 0; strip < a.num_strips; ++strip) {
    const byte* tile = a.tiles + strip * a.strip_stride_bytes;
    prefetch(tile, a.prefetch_bytes, kTilesPerStrip * 32 * K);
    const byte* x = a.activations;
    __m512i sum[M][2][kSets];
    for (int m = 0; m < M; ++m)
      for (int half = 0; half < 2; ++half)
        for (int i = 0; i < kSets; ++i) sum[m][half][i] = _mm512_setzero_si512();
    Qwords<K> next = load_qwords<K>(tile);
#pragma GCC unroll 1
    for (int kt = 0; kt < kTilesPerStrip; ++kt, x += 32) {
      const Qwords<K> now = next;  // the next tile's qwords are made a tile ahead of their use
      if (kt + 1 < kTilesPerStrip) tile += a.tile_stride_bytes;
      next = load_qwords<K>(tile);
#pragma GCC unroll 4
      for (int group = 0; group < 4; ++group) {
        const int lane = group % kLanes;
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m512i state =
              _mm512_multishift_epi64_epi8(windows[lane][half], now.q[group / kLanes]);
          const __m512i lo = _mm512_mullo_epi16(state, ml);
          const __m512i hi =
              _mm512_add_epi16(_mm512_mulhi_epu16(state, ml), _mm512_mullo_epi16(state, mh));
          if constexpr (kInt8) {
            for (int m = 0; m < M; ++m) {
              const __m512i activation = broadcast64(x + m * kRowBytes + 8 * group);
              sum[m][half][0] = _mm512_dpbusd_epi32(sum[m][half][0], lo, activation);
              sum[m][half][kSets - 1] =
                  _mm512_dpbusd_epi32(sum[m][half][kSets - 1], hi, activation);
            }
          } else {
            const __m512i byte_sum =
                _mm512_add_epi16(_mm512_maddubs_epi16(lo, ones), _mm512_maddubs_epi16(hi, ones));
            for (int m = 0; m < M; ++m)
              sum[m][half][group % kSets] =
                  _mm512_dpwssd_epi32(sum[m][half][group % kSets], byte_sum,
                                      broadcast64(x + m * kRowBytes + 8 * group));
          }
        }
      }
    }
    for (int m = 0; m < M; ++m) {
      if constexpr (kSets == 2)
        for (int half = 0; half < 2; ++half)
          sum[m][half][0] = _mm512_add_epi32(sum[m][half][0], sum[m][half][1]);
      add_sums(sum[m][0][0], sum[m][1][0], a.scales[m], a.sums + m * a.sums_stride + 16 * strip);
    }
  }
}

template <int K, bool kInt8>
void multishift_rows(const Exl3Strips& a) {
  switch (a.rows) {
    case 1:
      return multishift<K, 1, kInt8>(a);
    case 2:
      return multishift<K, 2, kInt8>(a);
    case 3:
      return multishift<K, 3, kInt8>(a);
    case 4:
      return multishift<K, 4, kInt8>(a);
    case 5:
      return multishift<K, 5, kInt8>(a);
    case 6:
      return multishift<K, 6, kInt8>(a);
    case 7:
      return multishift<K, 7, kInt8>(a);
    default:
      return multishift<K, 8, kInt8>(a);
  }
}

template <int K>
constexpr Exl3Kernel int16_kernel() {
  return {"avx512 vbmi multishift",
          onecard::cpu::Isa::kAvx512Vbmi,
          Exl3Precision::kInt16,
          exl3::Codebook::kMul1,
          K,
          8,
          Exl3Activations::kGrouped16,
          256,
          kExl3Int16Limit,
          multishift_rows<K, false>};
}
template <int K>
constexpr Exl3Kernel int8_kernel() {
  return {"avx512 vbmi multishift int8",
          onecard::cpu::Isa::kAvx512Vbmi,
          Exl3Precision::kInt8,
          exl3::Codebook::kMul1,
          K,
          8,
          Exl3Activations::kGrouped8,
          256,
          kExl3Int8Limit,
          multishift_rows<K, true>};
}

constexpr Exl3Kernel kKernels[] = {int8_kernel<2>(),  int8_kernel<3>(),  int8_kernel<4>(),
                                   int16_kernel<2>(), int16_kernel<3>(), int16_kernel<4>()};

}  // namespace

constinit const KernelTable kVbmiKernels{kKernels, sizeof(kKernels) / sizeof(Exl3Kernel)};

}  // namespace onecard::ops::cpu_exl3
