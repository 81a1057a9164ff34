// Elements of a weight in a plain format, exact in f32.
#pragma once

#include <cstdint>

#include "ops/cuda/number_formats.cuh"
#include "ops/linear.h"

namespace onecard::ops::cuda {

struct DenseWeight {
  const void* data;
  const uint8_t* scales;
  int64_t in;
  int64_t out;
};

inline DenseWeight dense_weight(const LinearWeight& w) {
  return {w.data, w.scales, w.in_features, w.out_features};
}

template <LinearWeight::Format kFormat>
__device__ float weight_value(const DenseWeight& w, int64_t o, int64_t i) {
  using Format = LinearWeight::Format;
  const int64_t at = o * w.in + i;
  if constexpr (kFormat == Format::kF32) {
    return static_cast<const float*>(w.data)[at];
  } else if constexpr (kFormat == Format::kF16) {
    return f16_to_f32(static_cast<const uint16_t*>(w.data)[at]);
  } else if constexpr (kFormat == Format::kBf16) {
    return bf16_to_f32(static_cast<const uint16_t*>(w.data)[at]);
  } else if constexpr (kFormat == Format::kFp8Block32) {
    return e4m3_to_f32(static_cast<const uint8_t*>(w.data)[at]) *
           e8m0_to_f32(w.scales[o / 32 * ((w.in + 31) / 32) + i / 32]);
  } else {
    const uint8_t pair = static_cast<const uint8_t*>(w.data)[at / 2];
    return e2m1_to_f32(i % 2 == 0 ? pair & 15 : pair >> 4) *
           e8m0_to_f32(w.scales[o * ((w.in + 31) / 32) + i / 32]);
  }
}

}  // namespace onecard::ops::cuda
