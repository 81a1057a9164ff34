#include <algorithm>

#include "ops/cuda/kernels.h"
#include "ops/cuda/number_formats.cuh"

namespace onecard::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// What a warp works on: 32 consecutive values of one vector, a value a lane.
struct Chunk {
  int64_t row, begin, column;
  bool inside;
};
__device__ Chunk chunk_of_warp(int64_t num_rows, int64_t dim) {
  const int64_t chunks = (dim + 31) / 32;
  const int64_t idx = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int64_t row = idx / chunks, begin = idx % chunks * 32;
  const int64_t column = begin + threadIdx.x % 32;
  return {row, begin, column, row < num_rows && column < dim};
}

unsigned grid_for(int64_t num_rows, int64_t dim) {
  return unsigned((num_rows * ((dim + 31) / 32) * 32 + kThreads - 1) / kThreads);
}

__global__ void pack_kernel(View<const float> x, KvRows out) {
  const Chunk chunk = chunk_of_warp(x.rows, out.dim);
  const float value = chunk.inside ? x.row(chunk.row)[chunk.column] : 0.0f;
  if (out.format == KvFormat::kF32) {
    if (chunk.inside) reinterpret_cast<float*>(out.row(chunk.row))[chunk.column] = value;
    return;
  }
  const int block = out.format == KvFormat::kFp4Block16 ? 16 : 32;
  const BlockScale scale = block_scale(out.format, block_amax(value, block));
  const uint8_t code = quantised_code(out.format, value, scale.value);
  const uint8_t next = uint8_t(__shfl_xor_sync(~0u, unsigned(code), 1));
  if (!chunk.inside) return;
  auto* const bytes = reinterpret_cast<uint8_t*>(out.row(chunk.row));
  const bool fp8 = out.format == KvFormat::kFp8Block32;
  if (fp8)
    bytes[chunk.column] = code;
  else if (chunk.column % 2 == 0)
    bytes[chunk.column / 2] = uint8_t(code | next << 4);
  if (chunk.column % block == 0)
    bytes[(fp8 ? out.dim : out.dim / 2) + chunk.column / block] = scale.code;
}

__global__ void unpack_kernel(ConstKvRows rows, View<float> out) {
  const Chunk chunk = chunk_of_warp(out.rows, rows.dim);
  if (chunk.inside)
    out.row(chunk.row)[chunk.column] =
        kv_value(rows.format, rows.row(chunk.row), rows.dim, chunk.column);
}

__global__ void fake_quantise_kernel(KvFormat format, int64_t dim, int64_t vectors_per_row,
                                     View<float> x) {
  const Chunk chunk = chunk_of_warp(x.rows * vectors_per_row, dim);
  float* const at = chunk.inside ? x.row(chunk.row / vectors_per_row) +
                                       chunk.row % vectors_per_row * dim + chunk.column
                                 : nullptr;
  const float value = chunk.inside ? *at : 0.0f;
  const BlockScale scale =
      block_scale(format, block_amax(value, format == KvFormat::kFp4Block16 ? 16 : 32));
  const uint8_t code = quantised_code(format, value, scale.value);
  if (chunk.inside)
    *at = (format == KvFormat::kFp8Block32 ? e4m3_to_f32(code) : e2m1_to_f32(code)) * scale.value;
}

}  // namespace

void pack_kv_rows(const Exec& exec, View<const float> x, const KvRows& out) {
  launch(exec, dim3(grid_for(x.rows, out.dim)), dim3(kThreads), 0, pack_kernel, x, out);
}

void unpack_kv_rows(const Exec& exec, const ConstKvRows& rows, View<float> out) {
  launch(exec, dim3(grid_for(out.rows, rows.dim)), dim3(kThreads), 0, unpack_kernel, rows, out);
}

void fake_quantise(const Exec& exec, KvFormat format, int64_t dim, View<float> x) {
  const int64_t vectors = x.cols / dim;
  launch(exec, dim3(grid_for(x.rows * vectors, dim)), dim3(kThreads), 0, fake_quantise_kernel,
         format, dim, vectors, x);
}

}  // namespace onecard::ops::cuda
