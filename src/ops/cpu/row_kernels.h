// The inner loops of the ops that are not matrix products, one table for each ISA. The plain table
// is the reference: sums in f64, results rounded to f32 once. Every other table has the same
// contracts within f32 arithmetic. A loop never looks beyond the row or head it is given, so a
// result depends on neither the other rows nor the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cpu/isa.h"
#include "ops/kv_format.h"

namespace onecard::ops::cpu {

struct RowKernels {
  /// sum x^2
  double (*sum_squares)(const float* x, int64_t n);
  /// out[t * num_outputs + o] = w[o * n ..] . x[t * x_stride ..], vectors of n
  void (*dots)(const float* w, int64_t num_outputs, const float* x, int64_t x_stride,
               int64_t num_rows, int64_t n, double* out);
  /// out[c] = w[c] * x[c] * scale
  void (*scale)(const float* x, const float* w, float scale, int64_t n, float* out);
  /// out[c] = sum_j mix[j] x[j * n + c]
  void (*collapse)(const float* x, const float* mix, int64_t num_streams, int64_t n, float* out);
  /// x[k * n + c] = post[k] y[c] + sum_j comb[j * num_streams + k] x[j * n + c]; num_streams <= 8
  void (*expand)(const float* y, const float* post, const float* comb, int64_t num_streams,
                 int64_t n, float* x);
  /// x[c] += a * y[c]
  void (*add_scaled)(float a, const float* y, int64_t n, float* x);
  /// sum_c x[c] w[c] y[c]
  double (*dot3)(const float* x, const float* w, const float* y, int64_t n);
  /// out[i] = weight * silu(min(gate[i], limit)) * clamp(up[i], -limit, limit)
  void (*swiglu)(const float* gate, const float* up, float weight, float limit, int64_t n,
                 float* out);
  /// Rotates the pairs of x[0..2n) by (cos, sin) = angles[2i], angles[2i + 1]; sin times `sign`.
  void (*rotate)(float* x, const float* angles, float sign, int64_t num_pairs);

  /// A packed row to f32 and back.
  void (*unpack)(KvFormat format, const std::byte* row, int64_t dim, float* out);
  void (*pack)(KvFormat format, const float* x, int64_t dim, std::byte* row);

  /// a[h * a_stride + j] = q[h * dim ..] . rows[j * dim ..] * scale
  void (*score_rows)(const float* q, int64_t num_heads, const float* rows, int64_t num_rows,
                     int64_t dim, float scale, float* a, int64_t a_stride);
  /// a[j] = exp(a[j] - shift); returns their sum
  double (*exp_sum)(float* a, int64_t n, float shift);
  /// out[h * dim + c] += scale[h] * sum_j a[h * a_stride + j] rows[j * dim + c]
  void (*mix_rows)(const float* a, int64_t a_stride, int64_t num_heads, const float* rows,
                   int64_t num_rows, int64_t dim, const float* scale, float* out);
  /// scores[g] = scale * sum_h w[h] max(0, q[h * dim ..] . keys[g * dim ..])
  void (*index_scores)(const float* q, const float* w, const float* keys, int64_t num_heads,
                       int64_t num_keys, int64_t dim, float scale, float* scores);
};

/// The table of the widest ISA that is not wider than `isa`.
const RowKernels& row_kernels(onecard::cpu::Isa isa);

const RowKernels& plain_row_kernels();
const RowKernels& avx2_row_kernels();

}  // namespace onecard::ops::cpu
