// AVX2 kernels of linear. Callable only where exec.isa is kAvx2 or wider. Raw pointers and numbers
// only: this header is shared with a source compiled for AVX2, which may include no inline code of
// others.
#pragma once

#include <cstdint>

namespace onecard::ops::cpu::avx2 {

enum class WeightType : uint8_t { kF32, kF16, kBf16 };

/// out[t * out_stride + o] = sum_i w[o * in + i] x[t * x_stride + i] for t < rows, o < outputs.
void dot_rows(WeightType type, const void* w, int64_t in, int64_t outputs, const float* x,
              int64_t x_stride, int64_t rows, float* out, int64_t out_stride);

}  // namespace onecard::ops::cpu::avx2
