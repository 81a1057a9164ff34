// Ops that look at one row, or at one value, at a time.
#include <algorithm>

#include "ops/cuda/block_sum.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/number_formats.cuh"

namespace onecard::ops::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t count) { return unsigned((count + kThreads - 1) / kThreads); }
__device__ int64_t thread_idx() { return int64_t(blockIdx.x) * kThreads + threadIdx.x; }

__global__ void rms_norm_kernel(View<const float> x, const float* w, float eps, View<float> out) {
  const float* in = x.row(blockIdx.x);  // one thread block per token
  float sum = 0;
  for (int64_t c = threadIdx.x; c < x.cols; c += kThreads) sum += in[c] * in[c];
  const float scale = 1.0f / sqrtf(block_sum<kThreads>(sum) / float(x.cols) + eps);
  for (int64_t c = threadIdx.x; c < x.cols; c += kThreads)
    out.row(blockIdx.x)[c] = in[c] * scale * w[c];
}

__global__ void count_up_kernel(int64_t first, int64_t step, int64_t count, int64_t* out) {
  const int64_t idx = thread_idx();
  if (idx < count) out[idx] = first + idx * step;
}

__global__ void visible_groups_kernel(int64_t first_position, int64_t ratio, int64_t count,
                                      int64_t* out) {
  const int64_t idx = thread_idx();
  if (idx < count) out[idx] = (first_position + idx + 1) / ratio;
}

// In f64 as on the host: a last bit of a large angle would turn a whole pair.
__global__ void rope_angles_kernel(const int64_t* positions, const float* frequencies,
                                   View<float> out) {
  const int64_t pairs = out.cols / 2, idx = thread_idx();
  if (idx >= out.rows * pairs) return;
  const int64_t row = idx / pairs, pair = idx % pairs;
  const float angle = __fmul_rn(float(positions[row]), frequencies[pair]);
  out.row(row)[2 * pair] = float(cos(double(angle)));
  out.row(row)[2 * pair + 1] = float(sin(double(angle)));
}

__global__ void rope_kernel(View<float> x, int64_t dim, View<const float> angles, float sign) {
  const int64_t pairs = angles.cols / 2, vectors = x.cols / dim;
  const int64_t idx = thread_idx();
  if (idx >= x.rows * vectors * pairs) return;
  const int64_t pair = idx % pairs, vector = idx / pairs % vectors, row = idx / pairs / vectors;
  float* const at = x.row(row) + (vector + 1) * dim - angles.cols + 2 * pair;
  const float cosine = angles.row(row)[2 * pair], sine = sign * angles.row(row)[2 * pair + 1];
  const float even = at[0], odd = at[1];
  at[0] = even * cosine - odd * sine;
  at[1] = even * sine + odd * cosine;
}

__global__ void swiglu_kernel(View<const float> gate, View<const float> up, const float* weights,
                              float limit, View<float> out) {
  const int64_t idx = thread_idx();
  if (idx >= gate.rows * gate.cols) return;
  const int64_t row = idx / gate.cols, c = idx % gate.cols;
  const float a = fminf(gate.row(row)[c], limit);
  const float b = fmaxf(fminf(up.row(row)[c], limit), -limit);
  out.row(row)[c] = (weights != nullptr ? weights[row] : 1.0f) * (a / (1.0f + expf(-a))) * b;
}

__global__ void pool_groups_kernel(View<const float> keys, View<const float> gates, int64_t ratio,
                                   View<float> out) {
  const int64_t idx = thread_idx();
  if (idx >= out.rows * out.cols) return;
  const int64_t group = idx / out.cols, c = idx % out.cols;
  float largest = gates.row(group * ratio)[c];
  for (int64_t i = 1; i < ratio; ++i) largest = fmaxf(largest, gates.row(group * ratio + i)[c]);
  float weight_sum = 0, sum = 0;
  for (int64_t i = 0; i < ratio; ++i) {
    const float weight = expf(gates.row(group * ratio + i)[c] - largest);
    weight_sum += weight;
    sum += weight * keys.row(group * ratio + i)[c];
  }
  out.row(group)[c] = sum / weight_sum;
}

// Where the token is not the last of its group there is nothing to pool yet.
__global__ void pool_open_groups_kernel(View<const float> keys, View<const float> gates,
                                        const int64_t* positions, const std::byte* const* key_rings,
                                        const std::byte* const* gate_rings, int64_t num_slots,
                                        int64_t ratio, View<float> out) {
  const int64_t idx = thread_idx();
  if (idx >= out.rows * out.cols) return;
  const int64_t row = idx / out.cols, c = idx % out.cols, position = positions[row];
  float& result = out.row(row)[c];
  result = 0;
  if ((position + 1) % ratio != 0) return;
  const auto* const key_ring = reinterpret_cast<const float*>(key_rings[row]);
  const auto* const gate_ring = reinterpret_cast<const float*>(gate_rings[row]);
  const auto slot = [&](int64_t i) {
    return (position + 1 - ratio + i) % num_slots * out.cols + c;
  };
  const float newest_gate = gates.row(row)[c];
  float largest = newest_gate;
  for (int64_t i = 0; i + 1 < ratio; ++i) largest = fmaxf(largest, gate_ring[slot(i)]);
  float weight_sum = 0, sum = 0;
  const auto add = [&](float gate, float key) {
    const float weight = expf(gate - largest);
    weight_sum += weight;
    sum += weight * key;
  };
  for (int64_t i = 0; i + 1 < ratio; ++i) add(gate_ring[slot(i)], key_ring[slot(i)]);
  add(newest_gate, keys.row(row)[c]);
  result = sum / weight_sum;
}

// One thread block a row.
__global__ __launch_bounds__(kThreads) void scatter_rows_kernel(const std::byte* rows,
                                                                int64_t row_bytes,
                                                                std::byte* const* places) {
  std::byte* const to = places[blockIdx.x];
  if (to == nullptr) return;
  const std::byte* const from = rows + blockIdx.x * row_bytes;
  if (((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
        static_cast<uintptr_t>(row_bytes)) &
       3) == 0) {
    for (int64_t i = threadIdx.x; i < row_bytes / 4; i += kThreads)
      reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
  } else {
    for (int64_t i = threadIdx.x; i < row_bytes; i += kThreads) to[i] = from[i];
  }
}

__global__ void embed_kernel(LinearWeight::Format format, const void* table, int64_t num_ids,
                             const int32_t* token_ids, View<float> out) {
  const int64_t idx = thread_idx();
  if (idx >= out.rows * out.cols) return;
  const int64_t row = idx / out.cols, c = idx % out.cols;
  const int64_t id = token_ids[row];
  const int64_t at = (id < 0 || id >= num_ids ? 0 : id) * out.cols + c;
  float value = 0;
  if (format == LinearWeight::Format::kF32)
    value = static_cast<const float*>(table)[at];
  else if (format == LinearWeight::Format::kBf16)
    value = bf16_to_f32(static_cast<const uint16_t*>(table)[at]);
  else
    value = f16_to_f32(static_cast<const uint16_t*>(table)[at]);
  out.row(row)[c] = value;
}

// One thread block a token and stream.
__global__ void engram_gate_kernel(View<const float> key_val, const float* qk, float eps,
                                   int64_t hidden, View<float> x) {
  const int64_t row = blockIdx.x, column = int64_t(blockIdx.y) * hidden;
  const float* const key = key_val.row(row) + column;
  const float* const val = key_val.row(row) + x.cols;
  float* const stream = x.row(row) + column;
  float stream_sum = 0, key_sum = 0, product = 0;
  for (int64_t c = threadIdx.x; c < hidden; c += kThreads) {
    stream_sum += stream[c] * stream[c];
    key_sum += key[c] * key[c];
    product += stream[c] * qk[column + c] * key[c];
  }
  stream_sum = block_sum<kThreads>(stream_sum);
  key_sum = block_sum<kThreads>(key_sum);
  product = block_sum<kThreads>(product);
  const float d = product / sqrtf(stream_sum / float(hidden) + eps) /
                  sqrtf(key_sum / float(hidden) + eps) / sqrtf(float(hidden));
  const float root = copysignf(sqrtf(fmaxf(fabsf(d), 1e-6f)), d);
  const float gate = 1.0f / (1.0f + expf(-root));
  for (int64_t c = threadIdx.x; c < hidden; c += kThreads) stream[c] += gate * val[c];
}

}  // namespace

void rms_norm(const Exec& exec, View<const float> x, std::span<const float> w, float eps,
              View<float> out) {
  launch(exec, dim3(unsigned(x.rows)), dim3(kThreads), 0, rms_norm_kernel, x, w.data(), eps, out);
}

void count_up(const Exec& exec, int64_t first, int64_t step, std::span<int64_t> out) {
  const auto count = int64_t(out.size());
  launch(exec, dim3(blocks_for(count)), dim3(kThreads), 0, count_up_kernel, first, step, count,
         out.data());
}

void visible_groups(const Exec& exec, int64_t first_position, int64_t ratio,
                    std::span<int64_t> out) {
  const auto count = int64_t(out.size());
  launch(exec, dim3(blocks_for(count)), dim3(kThreads), 0, visible_groups_kernel, first_position,
         ratio, count, out.data());
}

void rope_angles(const Exec& exec, std::span<const int64_t> positions,
                 std::span<const float> frequencies, View<float> out) {
  launch(exec, dim3(blocks_for(out.rows * (out.cols / 2))), dim3(kThreads), 0, rope_angles_kernel,
         positions.data(), frequencies.data(), out);
}

void rope(const Exec& exec, View<float> x, int64_t dim, View<const float> angles, bool inverse) {
  launch(exec, dim3(blocks_for(x.rows * (x.cols / dim) * (angles.cols / 2))), dim3(kThreads), 0,
         rope_kernel, x, dim, angles, inverse ? -1.0f : 1.0f);
}

void swiglu(const Exec& exec, View<const float> gate, View<const float> up,
            std::span<const float> weights, float limit, View<float> out) {
  launch(exec, dim3(blocks_for(gate.rows * gate.cols)), dim3(kThreads), 0, swiglu_kernel, gate, up,
         weights.empty() ? nullptr : weights.data(), limit, out);
}

void pool_groups(const Exec& exec, View<const float> keys, View<const float> gates, int64_t ratio,
                 View<float> out) {
  launch(exec, dim3(blocks_for(out.rows * out.cols)), dim3(kThreads), 0, pool_groups_kernel, keys,
         gates, ratio, out);
}

void pool_open_groups(const Exec& exec, View<const float> keys, View<const float> gates,
                      const OpenGroups& open, int64_t ratio, View<float> out) {
  launch(exec, dim3(blocks_for(out.rows * out.cols)), dim3(kThreads), 0, pool_open_groups_kernel,
         keys, gates, open.positions.data(), open.key_rings.data(), open.gate_rings.data(),
         open.num_slots, ratio, out);
}

void scatter_rows(const Exec& exec, const std::byte* rows, int64_t row_bytes,
                  std::span<std::byte* const> to) {
  launch(exec, dim3(unsigned(to.size())), dim3(kThreads), 0, scatter_rows_kernel, rows, row_bytes,
         to.data());
}

void embed(const Exec& exec, const LinearWeight& table, std::span<const int32_t> token_ids,
           View<float> out) {
  launch(exec, dim3(blocks_for(out.rows * out.cols)), dim3(kThreads), 0, embed_kernel, table.format,
         table.data, table.out_features, token_ids.data(), out);
}

void engram_gate_add(const Exec& exec, View<const float> key_val, std::span<const float> qk,
                     float eps, View<float> x) {
  const int64_t hidden = key_val.cols - x.cols;
  launch(exec, dim3(unsigned(x.rows), unsigned(x.cols / hidden)), dim3(kThreads), 0,
         engram_gate_kernel, key_val, qk.data(), eps, hidden, x);
}

}  // namespace onecard::ops::cuda
