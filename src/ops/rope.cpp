#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {

std::vector<float> rope_frequencies(double theta, int64_t rotary_dim, const YarnScaling* yarn) {
  require(rotary_dim > 0 && rotary_dim % 2 == 0 && theta > 1, ErrorCode::kInvalidArgument,
          "rope_frequencies: the rotary dimension must be even, theta above 1");
  // In f32 step by step, as the model was trained: a last bit of a frequency is visible thousands
  // of positions later.
  std::vector<float> frequencies;
  for (int64_t i = 0; i < rotary_dim / 2; ++i)
    frequencies.push_back(1.0f / std::pow(float(theta), float(2 * i) / float(rotary_dim)));
  if (yarn == nullptr) return frequencies;
  const auto dim = [&](double rotations) {
    return double(rotary_dim) *
           std::log(double(yarn->original_max_position_embeddings) /
                    (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  const double low = std::max(std::floor(dim(yarn->beta_fast)), 0.0);
  const double high = std::min(std::ceil(dim(yarn->beta_slow)), double(rotary_dim - 1));
  const auto span = float(std::max(high - low, 0.001));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp((float(i) - float(low)) / span, 0.0f, 1.0f);
    frequencies[i] = frequencies[i] / float(yarn->factor) * ramp + frequencies[i] * (1.0f - ramp);
  }
  return frequencies;
}

void rope_angles(const Exec& exec, std::span<const int64_t> positions,
                 std::span<const float> frequencies, View<float> out) {
  require(out.rows == int64_t(positions.size()) && out.cols == 2 * int64_t(frequencies.size()),
          ErrorCode::kInvalidArgument, "rope_angles: out must be [positions, 2 * frequencies]");
  if (exec.backend == Backend::kCuda) return cuda::rope_angles(exec, positions, frequencies, out);
  for (int64_t t = 0; t < out.rows; ++t) {
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const float angle = float(positions[size_t(t)]) * frequencies[i];
      out.row(t)[2 * i] = float(std::cos(double(angle)));
      out.row(t)[2 * i + 1] = float(std::sin(double(angle)));
    }
  }
}

void rope(const Exec& exec, View<float> x, int64_t dim, View<const float> angles, bool inverse) {
  require(dim > 0 && x.cols % dim == 0 && angles.rows == x.rows && angles.cols % 2 == 0 &&
              angles.cols <= dim,
          ErrorCode::kInvalidArgument,
          "rope: x must be [tokens, vectors * dim], angles [tokens, at most dim]");
  if (exec.backend == Backend::kCuda) return cuda::rope(exec, x, dim, angles, inverse);
  cpu::rope(exec, x, dim, angles, inverse);
}

}  // namespace onecard::ops
