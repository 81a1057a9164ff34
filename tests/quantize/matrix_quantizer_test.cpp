#include "quantize/matrix_quantizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "quant/exl3/reconstruct.h"
#include "quantize/ldl.h"

namespace onecard::quantize {
namespace {

Exec fastest() {
  Exec exec;
  exec.isa = std::min(cpu::detect_isa(), cpu::Isa::kAvx2);
  return exec;
}

// Gaussian, with rows and columns of uneven size. [out, in]
std::vector<float> uneven_weights(int64_t out, int64_t in, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row_scale(static_cast<size_t>(out)), column_scale(static_cast<size_t>(in)), w;
  for (float& scale : row_scale) scale = 0.02f * std::exp(0.5f * normal(random));
  for (float& scale : column_scale) scale = std::exp(0.5f * normal(random));
  for (int64_t o = 0; o < out; ++o)
    for (int64_t i = 0; i < in; ++i)
      w.push_back(normal(random) * row_scale[size_t(o)] * column_scale[size_t(i)]);
  return w;
}

// The decoded matrix as [out, in], by the plain decoder.
std::vector<float> decoded(const QuantizedMatrix& matrix) {
  std::vector<float> transposed(size_t(matrix.in_features * matrix.out_features)),
      w(transposed.size());
  exl3::reconstruct(matrix.view(), {transposed.data(), matrix.in_features, matrix.out_features});
  for (int64_t i = 0; i < matrix.in_features; ++i)
    for (int64_t o = 0; o < matrix.out_features; ++o)
      w[size_t(o * matrix.in_features + i)] = transposed[size_t(i * matrix.out_features + o)];
  return w;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
    energy += double(want[i]) * want[i];
  }
  return error / energy;
}

TEST(MatrixQuantizer, ErrorOfTheCodeAndNothingMore) {
  const auto w = uneven_weights(256, 128, 3);
  // The rotation makes the weights Gaussian: the published errors of the code hold for X, and for W
  // but for how the scales weigh the rows (a rounding of 2^-11 of the scales is far below both).
  const std::vector<std::pair<int, double>> published{
      {2, 0.0681}, {3, 0.0173}, {4, 0.00443}, {5, 0.00114}};
  for (const auto& [bits, error] : published) {
    MatrixOptions options;
    options.bits = bits;
    options.seed = 5;
    const auto matrix = quantize_matrix(fastest(), {w.data(), 256, 128}, {}, options);
    EXPECT_NEAR(matrix.relative_error, error, 0.1 * error) << "K=" << bits;
    EXPECT_LE(relative_error(decoded(matrix), w), 1.3 * error) << "K=" << bits;
    EXPECT_NEAR(matrix.scale, 0.77, 0.08) << "K=" << bits;
    EXPECT_FALSE(matrix.proxy_error.has_value());
  }
}

TEST(MatrixQuantizer, EveryCodebook) {
  const auto w = uneven_weights(128, 128, 4);
  for (const auto codebook : {exl3::Codebook::kMcg, exl3::Codebook::k3Inst}) {
    MatrixOptions options;
    options.codebook = codebook;
    const auto matrix = quantize_matrix(fastest(), {w.data(), 128, 128}, {}, options);
    EXPECT_LE(relative_error(decoded(matrix), w), 0.025);
    EXPECT_NEAR(matrix.scale, 0.97, 0.1);  // their spread is 1.24, not 1
  }
}

TEST(MatrixQuantizer, ZeroOutputsStayZeroAndZeroInputsDoNoHarm) {
  auto w = uneven_weights(128, 128, 6);
  for (int64_t i = 0; i < 128; ++i) w[size_t(7 * 128 + i)] = 0;  // output 7
  for (int64_t o = 0; o < 128; ++o) w[size_t(o * 128 + 9)] = 0;  // input 9
  MatrixOptions options;
  options.bits = 4;
  const auto got = decoded(quantize_matrix(fastest(), {w.data(), 128, 128}, {}, options));
  for (int64_t i = 0; i < 128; ++i) EXPECT_EQ(got[size_t(7 * 128 + i)], 0);
  EXPECT_LE(relative_error(got, w), 0.006);
  const std::vector<float> zeros(128 * 128);
  EXPECT_EQ(decoded(quantize_matrix(fastest(), {zeros.data(), 128, 128}, {}, options)), zeros);
}

TEST(MatrixQuantizer, TheNumberOfThreadsChangesNothing) {
  const auto w = uneven_weights(128, 256, 8);
  std::vector<double> hessian(256 * 256);
  for (int64_t i = 0; i < 256; ++i) hessian[size_t(i * 257)] = 1 + double(i % 7);
  ThreadPool pool(3);
  Exec parallel = fastest();
  parallel.pool = &pool;
  const auto one = quantize_matrix(fastest(), {w.data(), 128, 256}, hessian, {});
  const auto three = quantize_matrix(parallel, {w.data(), 128, 256}, hessian, {});
  EXPECT_EQ(one.trellis, three.trellis);
  EXPECT_EQ(one.suh, three.suh);
  EXPECT_EQ(one.svh, three.svh);
}

TEST(MatrixQuantizer, ErrorFeedbackLowersTheOutputError) {
  // Inputs that are sums of few hidden causes: strongly correlated, as activations are.
  const int64_t in = 256, out = 128, samples = 1024;
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  std::vector<float> mix(size_t(in * 40));
  for (float& value : mix) value = normal(random);
  std::vector<std::vector<float>> inputs;
  std::vector<double> hessian(size_t(in * in));
  for (int64_t s = 0; s < 2 * samples; ++s) {
    std::vector<float> causes(40), x(static_cast<size_t>(in));
    for (float& cause : causes) cause = normal(random);
    for (int64_t i = 0; i < in; ++i) {
      x[size_t(i)] = 0.3f * normal(random);
      for (int64_t c = 0; c < 40; ++c) x[size_t(i)] += mix[size_t(i * 40 + c)] * causes[size_t(c)];
    }
    if (s < samples)
      for (int64_t i = 0; i < in; ++i)
        for (int64_t j = 0; j < in; ++j)
          hessian[size_t(i * in + j)] += double(x[size_t(i)]) * x[size_t(j)];
    else
      inputs.push_back(x);  // the error is measured on samples that the Hessian has not seen
  }
  const auto w = uneven_weights(out, in, 13);
  const auto output_error = [&](bool feedback) {
    MatrixOptions options;
    options.error_feedback = feedback;
    const auto matrix = quantize_matrix(fastest(), {w.data(), out, in}, hessian, options);
    const auto got = decoded(matrix);
    double error = 0, energy = 0;
    for (const auto& x : inputs)
      for (int64_t o = 0; o < out; ++o) {
        double y = 0, y_got = 0;
        for (int64_t i = 0; i < in; ++i) {
          y += double(w[size_t(o * in + i)]) * x[size_t(i)];
          y_got += double(got[size_t(o * in + i)]) * x[size_t(i)];
        }
        error += (y - y_got) * (y - y_got);
        energy += y * y;
      }
    return error / energy;
  };
  const double nearest = output_error(false), feedback = output_error(true);
  EXPECT_LE(feedback, 0.6 * nearest) << "nearest " << nearest;
}

TEST(MatrixQuantizer, RefusesWhatItCannotQuantise) {
  std::vector<float> w(128 * 128, 1.0f);
  EXPECT_THROW(quantize_matrix({}, {w.data(), 128, 64}, {}, {}), Error);
  EXPECT_THROW(quantize_matrix({}, {w.data(), 128, 128}, std::vector<double>(4), {}), Error);
  w[77] = std::nanf("");
  EXPECT_THROW(quantize_matrix({}, {w.data(), 128, 128}, {}, {}), Error);
}

TEST(BlockLdl, MultipliesBackToTheMatrix) {
  const int64_t n = 144, block = 16;  // more than two panels, and a remainder
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> a(size_t(n * n)), h(size_t(n * n));
  for (double& value : a) value = normal(random);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t k = 0; k < n; ++k)
        h[size_t(i * n + j)] += a[size_t(i * n + k)] * a[size_t(j * n + k)];
  const std::vector<float> l = block_ldl({}, h, n, block);
  ASSERT_EQ(l.size(), size_t(n * n));
  // D from the top down: D_b = H_bb - sum over earlier blocks of L_b D L_b^T; then all of H.
  std::vector<double> rest = h;
  for (int64_t b = 0; b < n; b += block) {
    for (int64_t i = 0; i < b + block; ++i)
      for (int64_t j = 0; j < block; ++j)
        EXPECT_NEAR(l[size_t(i * n + b + j)], i == b + j ? 1.0 : 0.0, 1e-6);
    std::vector<double> d(size_t(block * block));
    for (int64_t i = 0; i < block; ++i)
      for (int64_t j = 0; j < block; ++j)
        d[size_t(i * block + j)] = rest[size_t((b + i) * n + b + j)];
    for (int64_t r = b; r < n; ++r)
      for (int64_t c = b; c < n; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < block; ++i)
          for (int64_t j = 0; j < block; ++j)
            sum += double(l[size_t(r * n + b + i)]) * d[size_t(i * block + j)] *
                   l[size_t(c * n + b + j)];
        rest[size_t(r * n + c)] -= sum;
      }
  }
  double largest = 0;
  for (const double value : rest) largest = std::max(largest, std::fabs(value));
  EXPECT_LE(largest, 1e-3);  // f32 factors of a matrix with entries of about 144
}

TEST(BlockLdl, SaysWhenNotPositive) {
  std::vector<double> h(16 * 16);
  for (int64_t i = 0; i < 16; ++i) h[size_t(i * 17)] = i == 9 ? -1 : 1;
  EXPECT_TRUE(block_ldl({}, h, 16, 16).empty());
}

}  // namespace
}  // namespace onecard::quantize
