#include "ops/cpu/linear_avx2.h"

#include <immintrin.h>

#include <cstring>

namespace onecard::ops::cpu::avx2 {
namespace {

// ---- dense rows

inline __m256 load8(const float* w) { return _mm256_loadu_ps(w); }
struct F16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};
inline __m256 load8(const F16* w) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
}
inline __m256 load8(const Bf16* w) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(packed), 16));
}

inline float horizontal_sum(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// The last in % 8 weights and inputs, padded with zeros, so that a sum has the same order whatever
// block it is computed in.
template <typename W>
__m256 load_tail(const W* w, int64_t count) {
  W padded[8] = {};
  std::memcpy(padded, w, size_t(count) * sizeof(W));
  return load8(padded);
}

// Each (row, output) pair has one accumulator: the result does not depend on the block's shape.
template <typename W, int kRows, int kOutputs>
void dot_block(const W* w, int64_t in, const float* x, int64_t x_stride, float* out,
               int64_t out_stride) {
  __m256 sum[kRows][kOutputs];
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOutputs; ++o) sum[r][o] = _mm256_setzero_ps();
  const int64_t body = in / 8 * 8;
  for (int64_t i = 0; i < body; i += 8) {
    __m256 weight[kOutputs];
    for (int o = 0; o < kOutputs; ++o) weight[o] = load8(w + o * in + i);
    for (int r = 0; r < kRows; ++r) {
      const __m256 input = _mm256_loadu_ps(x + r * x_stride + i);
      for (int o = 0; o < kOutputs; ++o) sum[r][o] = _mm256_fmadd_ps(weight[o], input, sum[r][o]);
    }
  }
  if (body < in) {
    for (int r = 0; r < kRows; ++r) {
      const __m256 input = load_tail(x + r * x_stride + body, in - body);
      for (int o = 0; o < kOutputs; ++o)
        sum[r][o] = _mm256_fmadd_ps(load_tail(w + o * in + body, in - body), input, sum[r][o]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOutputs; ++o) out[r * out_stride + o] = horizontal_sum(sum[r][o]);
}

template <typename W, int kRows, int kOutputs>
void dot_row_block(const W* w, int64_t in, int64_t outputs, const float* x, int64_t x_stride,
                   float* out, int64_t out_stride) {
  int64_t o = 0;
  for (; o + kOutputs <= outputs; o += kOutputs)
    dot_block<W, kRows, kOutputs>(w + o * in, in, x, x_stride, out + o, out_stride);
  for (; o < outputs; ++o) dot_block<W, kRows, 1>(w + o * in, in, x, x_stride, out + o, out_stride);
}

template <typename W>
void dot_all(const W* w, int64_t in, int64_t outputs, const float* x, int64_t x_stride,
             int64_t rows, float* out, int64_t out_stride) {
  int64_t t = 0;
  for (; t + 4 <= rows; t += 4)
    dot_row_block<W, 4, 3>(w, in, outputs, x + t * x_stride, x_stride, out + t * out_stride,
                           out_stride);
  for (; t < rows; ++t)
    dot_row_block<W, 1, 8>(w, in, outputs, x + t * x_stride, x_stride, out + t * out_stride,
                           out_stride);
}

}  // namespace

void dot_rows(WeightType type, const void* w, int64_t in, int64_t outputs, const float* x,
              int64_t x_stride, int64_t rows, float* out, int64_t out_stride) {
  switch (type) {
    case WeightType::kF32:
      return dot_all(static_cast<const float*>(w), in, outputs, x, x_stride, rows, out, out_stride);
    case WeightType::kF16:
      return dot_all(static_cast<const F16*>(w), in, outputs, x, x_stride, rows, out, out_stride);
    case WeightType::kBf16:
      return dot_all(static_cast<const Bf16*>(w), in, outputs, x, x_stride, rows, out, out_stride);
  }
}

}  // namespace onecard::ops::cpu::avx2
