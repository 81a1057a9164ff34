#include "ops/cpu/row_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tensor/dtype.h"

namespace onecard::ops::cpu {
namespace {

double sum_squares(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += double(x[c]) * x[c];
  return sum;
}

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += double(a[c]) * b[c];
  return sum;
}

void dots(const float* w, int64_t num_outputs, const float* x, int64_t x_stride, int64_t num_rows,
          int64_t n, double* out) {
  for (int64_t t = 0; t < num_rows; ++t)
    for (int64_t o = 0; o < num_outputs; ++o)
      out[t * num_outputs + o] = dot(w + o * n, x + t * x_stride, n);
}

void scale(const float* x, const float* w, float factor, int64_t n, float* out) {
  for (int64_t c = 0; c < n; ++c) out[c] = x[c] * factor * w[c];
}

void collapse(const float* x, const float* mix, int64_t num_streams, int64_t n, float* out) {
  for (int64_t c = 0; c < n; ++c) {
    double sum = 0;
    for (int64_t j = 0; j < num_streams; ++j) sum += double(mix[j]) * x[j * n + c];
    out[c] = float(sum);
  }
}

void expand(const float* y, const float* post, const float* comb, int64_t num_streams, int64_t n,
            float* x) {
  double mixed[8];
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t k = 0; k < num_streams; ++k) {
      mixed[k] = double(post[k]) * y[c];
      for (int64_t j = 0; j < num_streams; ++j)
        mixed[k] += double(comb[j * num_streams + k]) * x[j * n + c];
    }
    for (int64_t k = 0; k < num_streams; ++k) x[k * n + c] = float(mixed[k]);
  }
}

void add_scaled(float a, const float* y, int64_t n, float* x) {
  for (int64_t c = 0; c < n; ++c) x[c] = float(x[c] + double(a) * y[c]);
}

double dot3(const float* x, const float* w, const float* y, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += double(x[c]) * w[c] * y[c];
  return sum;
}

void swiglu(const float* gate, const float* up, float weight, float limit, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const double a = std::min(gate[i], limit);
    const double b = std::clamp(up[i], -limit, limit);
    out[i] = float(weight * (a / (1.0 + std::exp(-a))) * b);
  }
}

void rotate(float* x, const float* angles, float sign, int64_t num_pairs) {
  for (int64_t i = 0; i < num_pairs; ++i) {
    const double even = x[2 * i], odd = x[2 * i + 1];
    const double cosine = angles[2 * i], sine = double(sign) * angles[2 * i + 1];
    x[2 * i] = float(even * cosine - odd * sine);
    x[2 * i + 1] = float(even * sine + odd * cosine);
  }
}

/// Exponent byte of the smallest power of two >= x, for x > 0.
uint8_t pow2ceil_e8m0(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return uint8_t((bits >> 23) + ((bits & 0x7fffff) != 0));
}

float max_abs(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t c = 0; c < n; ++c) largest = std::max(largest, std::fabs(x[c]));
  return largest;
}

uint8_t e2m1_pair(const float* x, float s) {
  const uint8_t low = f32_to_e2m1(std::clamp(x[0] / s, -6.0f, 6.0f));
  const uint8_t high = f32_to_e2m1(std::clamp(x[1] / s, -6.0f, 6.0f));
  return uint8_t(low | high << 4);
}

void pack(KvFormat format, const float* x, int64_t dim, std::byte* row) {
  auto* bytes = reinterpret_cast<uint8_t*>(row);
  switch (format) {
    case KvFormat::kF32:
      std::memcpy(row, x, size_t(dim) * sizeof(float));
      return;
    case KvFormat::kFp8Block32:
      for (int64_t b = 0; b < dim / 32; ++b) {
        const float amax = std::max(max_abs(x + 32 * b, 32), 1e-4f);
        const uint8_t exponent = pow2ceil_e8m0(amax * (1.0f / 448.0f));
        const float s = e8m0_to_f32(exponent);
        for (int64_t c = 32 * b; c < 32 * (b + 1); ++c)
          bytes[c] = f32_to_e4m3(std::clamp(x[c] / s, -448.0f, 448.0f));
        bytes[dim + b] = exponent;
      }
      return;
    case KvFormat::kFp4Block32:
      for (int64_t b = 0; b < dim / 32; ++b) {
        const float amax = std::max(max_abs(x + 32 * b, 32), 6 * 0x1p-126f);
        const uint8_t exponent = pow2ceil_e8m0(amax * (1.0f / 6.0f));
        const float s = e8m0_to_f32(exponent);
        for (int64_t c = 16 * b; c < 16 * (b + 1); ++c) bytes[c] = e2m1_pair(x + 2 * c, s);
        bytes[dim / 2 + b] = exponent;
      }
      return;
    case KvFormat::kFp4Block16:
      for (int64_t b = 0; b < dim / 16; ++b) {
        const float amax = std::max(max_abs(x + 16 * b, 16), 6 * 0x1p-9f);
        const uint8_t code = f32_to_e4m3(std::min(amax / 6.0f, 448.0f));
        const float s = e4m3_to_f32(code);
        for (int64_t c = 8 * b; c < 8 * (b + 1); ++c) bytes[c] = e2m1_pair(x + 2 * c, s);
        bytes[dim / 2 + b] = code;
      }
      return;
  }
}

void unpack(KvFormat format, const std::byte* row, int64_t dim, float* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  switch (format) {
    case KvFormat::kF32:
      std::memcpy(out, row, size_t(dim) * sizeof(float));
      return;
    case KvFormat::kFp8Block32:
      for (int64_t c = 0; c < dim; ++c)
        out[c] = e4m3_to_f32(bytes[c]) * e8m0_to_f32(bytes[dim + c / 32]);
      return;
    case KvFormat::kFp4Block32:
    case KvFormat::kFp4Block16:
      for (int64_t c = 0; c < dim; ++c) {
        const float value = e2m1_to_f32(bytes[c / 2] >> (c % 2 * 4) & 15);
        out[c] = format == KvFormat::kFp4Block32 ? value * e8m0_to_f32(bytes[dim / 2 + c / 32])
                                                 : value * e4m3_to_f32(bytes[dim / 2 + c / 16]);
      }
      return;
  }
}

void score_rows(const float* q, int64_t num_heads, const float* rows, int64_t num_rows, int64_t dim,
                float factor, float* a, int64_t a_stride) {
  for (int64_t h = 0; h < num_heads; ++h)
    for (int64_t j = 0; j < num_rows; ++j)
      a[h * a_stride + j] = float(dot(q + h * dim, rows + j * dim, dim) * factor);
}

double exp_sum(float* a, int64_t n, float shift) {
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    const double value = std::exp(double(a[j]) - shift);
    sum += value;
    a[j] = float(value);
  }
  return sum;
}

void mix_rows(const float* a, int64_t a_stride, int64_t num_heads, const float* rows,
              int64_t num_rows, int64_t dim, const float* factor, float* out) {
  for (int64_t h = 0; h < num_heads; ++h, a += a_stride, out += dim)
    for (int64_t c = 0; c < dim; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < num_rows; ++j) sum += double(a[j]) * rows[j * dim + c];
      out[c] = float(out[c] + sum * factor[h]);
    }
}

void index_scores(const float* q, const float* w, const float* keys, int64_t num_heads,
                  int64_t num_keys, int64_t dim, float factor, float* scores) {
  for (int64_t g = 0; g < num_keys; ++g) {
    double sum = 0;
    for (int64_t h = 0; h < num_heads; ++h)
      sum += w[h] * std::max(0.0, dot(q + h * dim, keys + g * dim, dim));
    scores[g] = float(sum * factor);
  }
}

constexpr RowKernels kPlain{sum_squares, dots,       scale,   collapse, expand,
                            add_scaled,  dot3,       swiglu,  rotate,   unpack,
                            pack,        score_rows, exp_sum, mix_rows, index_scores};

}  // namespace

const RowKernels& plain_row_kernels() { return kPlain; }

const RowKernels& row_kernels(onecard::cpu::Isa isa) {
  return isa >= onecard::cpu::Isa::kAvx2 ? avx2_row_kernels() : plain_row_kernels();
}

}  // namespace onecard::ops::cpu
