// Rotary position embedding on the last channels of a vector, interleaved pairs (Su et al. 2021),
// with YaRN's interpolation of frequencies (Peng et al. 2023).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/exec.h"
#include "tensor/view.h"

namespace onecard::ops {

struct YarnScaling {
  double factor = 16;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_position_embeddings = 65536;
};

/// The rotary_dim / 2 frequencies f[i] = theta^(-2i/rotary_dim), in f32. With `yarn`:
///   dim(n)  = rotary_dim * ln(original / (2 pi n)) / (2 ln theta)
///   ramp[i] = clamp((i - low) / max(high - low, 0.001), 0, 1)
///             low = max(floor(dim(beta_fast)), 0), high = min(ceil(dim(beta_slow)), rotary_dim -
///             1)
///   f'[i]   = f[i] / factor * ramp[i] + f[i] * (1 - ramp[i])
/// Neither cosines nor the softmax are scaled.
std::vector<float> rope_frequencies(double theta, int64_t rotary_dim,
                                    const YarnScaling* yarn = nullptr);

/// out[t, :] = cos(a[0]), sin(a[0]), cos(a[1]), sin(a[1]), ...   a[i] = fp32(positions[t]) * f[i]
/// out: [tokens, 2 * frequencies.size()] f32.
void rope_angles(const Exec& exec, std::span<const int64_t> positions,
                 std::span<const float> frequencies, View<float> out);

/// Rotates in place each run of `dim` columns of every row: with n = angles.cols, the pair of
/// channels (dim - n + 2i, dim - n + 2i + 1) = (e, o) becomes (e cos - o sin, e sin + o cos).
/// `inverse` negates sin. x: [tokens, vectors * dim]; angles: [tokens, n] from rope_angles().
void rope(const Exec& exec, View<float> x, int64_t dim, View<const float> angles,
          bool inverse = false);

}  // namespace onecard::ops
