// Manifold-constrained hyper-connections in their single-pass form: `hc_mult` residual streams are
// collapsed into a layer's input and its output is expanded back, with coefficients that are a
// function of the streams.   Zhu et al. 2024; Xie et al. 2025.
// Streams X of a token are one row of hc_mult * hidden columns, stream by stream.
#pragma once

#include <cstdint>
#include <span>

#include "device/exec.h"
#include "tensor/view.h"

namespace onecard::ops {

/// Parameters of one site: fn [(2 + hc_mult) * hc_mult, hc_mult * hidden], base [.. rows of fn],
/// scale [3].
struct HcSite {
  View<const float> fn;
  std::span<const float> base;
  std::span<const float> scale;
  int64_t sinkhorn_iters = 20;
  float hc_eps = 1e-6f;
  float norm_eps = 1e-20f;
};

/// pre, post: [tokens, hc_mult]; comb: [tokens, hc_mult * hc_mult], comb[j][k] at column
/// j * hc_mult + k.
struct HcCoefficients {
  View<float> pre;
  View<float> post;
  View<float> comb;
};

/// Begins: every stream of x is y, and the first collapse takes the first stream alone:
/// x[t,j,:] = y[t,:], mix[t,:] = 1, 0, 0, ...   y: [tokens, hidden], which may be x's first
/// columns; x: [tokens, hc_mult * hidden]; mix: [tokens, hc_mult].
void hc_begin(const Exec& exec, View<const float> y, View<float> x, View<float> mix);

/// With m = fn . X / sqrt(mean(X^2) + norm_eps), H = hc_mult:
///   pre[i]     = sigmoid(m[i] * scale[0] + base[i]) + hc_eps
///   post[i]    = 2 sigmoid(m[H+i] * scale[1] + base[H+i])
///   comb[i][k] = sinkhorn(softmax over k of m[2H + Hi + k] * scale[2] + base[2H + Hi + k])
/// sinkhorn: add hc_eps; columns /= (sum + hc_eps); then sinkhorn_iters - 1 times rows, columns.
/// x: [tokens, hc_mult * hidden] f32.
void hc_coefficients(const Exec& exec, View<const float> x, const HcSite& site,
                     const HcCoefficients& out);

/// The second half of hc_coefficients: from m [tokens, (2 + hc_mult) * hc_mult].
void hc_coefficients_from_mix(View<const float> m, const HcSite& site, const HcCoefficients& out);

/// out[t,:] = rms_norm(sum_j mix[t,j] x[t,j,:], w, eps).   x: [tokens, hc_mult * hidden];
/// mix: [tokens, hc_mult]; w: [hidden]; out: [tokens, hidden].
void hc_collapse_norm(const Exec& exec, View<const float> x, View<const float> mix,
                      std::span<const float> w, float eps, View<float> out);

/// x[t,k,:] = post[t,k] y[t,:] + sum_j comb[t,j,k] x[t,j,:], in place: comb is contracted over its
/// first index.   y: [tokens, hidden]; x: [tokens, hc_mult * hidden].
void hc_expand(const Exec& exec, View<const float> y, View<const float> post,
               View<const float> comb, View<float> x);

}  // namespace onecard::ops
