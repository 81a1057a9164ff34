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

/// Eight EXL3 tiles, one below the other, `tile_stride` bytes apart -> weights [128][16] f32.
/// codebook: the value of exl3::Codebook.
void decode_strip(const void* tiles, int64_t tile_stride, int bits, int codebook, float* strip);

/// z[t * z_stride + c] += sum_k x[t * x_stride + k] strip[16 k + c] for t < rows, k < 128, c < 16.
void accumulate_strip(const float* x, int64_t x_stride, int64_t rows, const float* strip, float* z,
                      int64_t z_stride);

/// out = Hadamard(in * scale), blocks of 128; scale is fp16 bits. May be in place.
void scale_then_hadamard(const float* in, const uint16_t* scale, int64_t size, float* out);
/// out = Hadamard(in) * scale, one block of 128.
void hadamard_then_scale(const float* in, const uint16_t* scale, float* out);

}  // namespace onecard::ops::cpu::avx2
