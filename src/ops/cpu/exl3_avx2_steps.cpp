// AVX2 steps around a product. prepare() and finish() give the same bits as the plain ones (same
// operations in the same order, no fused multiply-add); swiglu()'s exponential differs within 1e-6.
#include <immintrin.h>

#include "ops/cpu/exl3_isa.h"

namespace onecard::ops::cpu_exl3 {
namespace {

using std::byte;

#define ONECARD_INLINE inline __attribute__((always_inline))

ONECARD_INLINE __m256 load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Sylvester order: strides 1, 2, 4 inside a register, then between registers; scaled last.
ONECARD_INLINE void hadamard(__m256 (&v)[16]) {
  const __m256 sign1 = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
  const __m256 sign2 = _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f);
  const __m256 sign4 = _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
  for (auto& r : v) {
    r = _mm256_add_ps(_mm256_permute_ps(r, 0xb1), _mm256_xor_ps(r, sign1));
    r = _mm256_add_ps(_mm256_permute_ps(r, 0x4e), _mm256_xor_ps(r, sign2));
    r = _mm256_add_ps(_mm256_permute2f128_ps(r, r, 1), _mm256_xor_ps(r, sign4));
  }
#pragma GCC unroll 4
  for (int h = 1; h < 16; h *= 2)
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      if ((i & h) == 0) {
        const __m256 a = v[i], b = v[i + h];
        v[i] = _mm256_add_ps(a, b);
        v[i + h] = _mm256_sub_ps(a, b);
      }
  for (auto& r : v) r = _mm256_mul_ps(r, _mm256_set1_ps(0.08838834764831845f));
}

// Rows of a tile in the order of row groups: (2g, 2g + 1, 2g + 8, 2g + 9).
ONECARD_INLINE __m256i grouped(__m256i natural) {
  // The low lanes of both: row pairs 0, 1 and 4, 5; the high ones: 2, 3 and 6, 7.
  return _mm256_unpacklo_epi32(_mm256_permute4x64_epi64(natural, 0x10),
                               _mm256_permute4x64_epi64(natural, 0x32));
}

void pack(Exl3Activations order, const __m256i (&tiles)[8], byte* out) {
  const auto store = [&out](__m256i value) __attribute__((always_inline)) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), value);
    out += 32;
  };
  switch (order) {
    case Exl3Activations::kNatural16:
      for (const __m256i x : tiles) store(x);
      return;
    case Exl3Activations::kDoubled16:
      for (const __m256i x : tiles) {
        // Even rows are j = 0 and 2 (rows 2g and 2g + 8), odd rows j = 1 and 3.
        const __m256i even = _mm256_or_si256(_mm256_slli_epi32(x, 16),
                                             _mm256_and_si256(x, _mm256_set1_epi32(0xffff)));
        const __m256i odd = _mm256_or_si256(_mm256_srli_epi32(x, 16),
                                            _mm256_andnot_si256(_mm256_set1_epi32(0xffff), x));
        store(_mm256_permute2x128_si256(even, odd, 0x20));
        store(_mm256_permute2x128_si256(even, odd, 0x31));
      }
      return;
    case Exl3Activations::kGrouped16:
      for (const __m256i x : tiles) store(grouped(x));
      return;
    case Exl3Activations::kGrouped8: {
      const __m256i twice =
          _mm256_setr_epi8(0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14,  //
                           0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
      for (const __m256i x : tiles) store(_mm256_shuffle_epi8(grouped(x), twice));
      return;
    }
    case Exl3Activations::kNaturalF32:
    case Exl3Activations::kStreamF32:
      return;
  }
}

// Rows 0..7 and 8..15 of an in-tile, in order or as the stream has them: 0 1 8 9 2 3 10 11 4 ..
ONECARD_INLINE void store_f32(__m256 low, __m256 high, bool natural, float* out) {
  if (!natural) {
    const __m256d a = _mm256_castps_pd(low), b = _mm256_castps_pd(high);
    const __m256d even = _mm256_unpacklo_pd(a, b), odd = _mm256_unpackhi_pd(a, b);
    low = _mm256_castpd_ps(_mm256_permute2f128_pd(even, odd, 0x20));
    high = _mm256_castpd_ps(_mm256_permute2f128_pd(even, odd, 0x31));
  }
  _mm256_storeu_ps(out, low);
  _mm256_storeu_ps(out + 8, high);
}

ONECARD_INLINE int sum_lanes(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
ONECARD_INLINE float max_lanes(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

void prepare(const Exl3Kernel& kernel, const float* x, const uint16_t* suh, byte* activations,
             float* scale, float* offset) {
  __m256 v[16];
  for (int i = 0; i < 16; ++i)
    v[i] = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), load_f16(suh + 8 * i));
  hadamard(v);
  if (kernel.activation_limit == 0) {
    const bool natural = kernel.activations == Exl3Activations::kNaturalF32;
    for (int kt = 0; kt < 8; ++kt)
      store_f32(v[2 * kt], v[2 * kt + 1], natural, reinterpret_cast<float*>(activations) + 16 * kt);
    *scale = 1;
    *offset = 0;
    return;
  }
  __m256 largest_lanes = _mm256_setzero_ps(), poison_lanes = _mm256_setzero_ps();
  for (const __m256 r : v) {
    largest_lanes = _mm256_max_ps(largest_lanes, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), r));
    poison_lanes = _mm256_add_ps(poison_lanes, _mm256_mul_ps(r, _mm256_setzero_ps()));
  }
  // NaN where an input is not finite: the integers cannot say it, so the scale does.
  const bool finite =
      _mm256_movemask_ps(_mm256_cmp_ps(poison_lanes, _mm256_setzero_ps(), _CMP_EQ_OQ)) == 0xff;
  const float poison = finite ? 0.0f : __builtin_nanf("");
  const float largest = max_lanes(largest_lanes);
  const bool some = finite && largest > kExl3SmallestStep;
  const float step = some ? largest / float(kernel.activation_limit) : 1;
  const __m256 inverse = _mm256_set1_ps(some ? 1 / step : 0);
  __m256i sum = _mm256_setzero_si256();
  __m256i tiles[8];
  for (int kt = 0; kt < 8; ++kt) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * kt], inverse));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * kt + 1], inverse));
    sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
    tiles[kt] = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  }
  if (!finite) {
    for (auto& tile : tiles) tile = _mm256_setzero_si256();
    sum = _mm256_setzero_si256();
  }
  pack(kernel.activations, tiles, activations);
  *scale = step + poison;
  *offset = *scale * float(sum_lanes(sum)) * kExl3OffsetGain;
}

void finish(const float* sums, float gain, const uint16_t* svh, float* y) {
  __m256 v[16];
  for (int i = 0; i < 16; ++i)
    v[i] = _mm256_mul_ps(_mm256_loadu_ps(sums + 8 * i), _mm256_set1_ps(gain));
  hadamard(v);
  for (int i = 0; i < 16; ++i)
    _mm256_storeu_ps(y + 8 * i, _mm256_mul_ps(v[i], load_f16(svh + 8 * i)));
}

// exp(x) for |x| <= 87, relative error below 3e-7: 2^n times the Taylor polynomial of the rest,
// ln 2 in two parts (Cody and Waite 1980).
ONECARD_INLINE __m256 exp(__m256 x) {
  // The operand order of min and max keeps a NaN of x.
  x = _mm256_max_ps(_mm256_set1_ps(-87), _mm256_min_ps(_mm256_set1_ps(87), x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
  __m256 p = _mm256_set1_ps(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

void swiglu(const float* gate, const float* up, float limit, float weight, float* h) {
  const __m256 high = _mm256_set1_ps(limit), low = _mm256_set1_ps(-limit);
  const __m256 one = _mm256_set1_ps(1), weights = _mm256_set1_ps(weight);
  for (int i = 0; i < 128; i += 8) {
    const __m256 a = _mm256_min_ps(high, _mm256_loadu_ps(gate + i));
    const __m256 b = _mm256_max_ps(low, _mm256_min_ps(high, _mm256_loadu_ps(up + i)));
    const __m256 silu =
        _mm256_div_ps(a, _mm256_add_ps(one, exp(_mm256_sub_ps(_mm256_setzero_ps(), a))));
    _mm256_storeu_ps(h + i, _mm256_mul_ps(_mm256_mul_ps(silu, b), weights));
  }
}

void add(const float* a, const float* b, int64_t n, float* sum) {
  for (int64_t i = 0; i < n; i += 8)
    _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
}

}  // namespace

constinit const Exl3Steps kAvx2Steps{prepare, finish, swiglu, add};

}  // namespace onecard::ops::cpu_exl3
