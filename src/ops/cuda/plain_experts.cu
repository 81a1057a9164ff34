// Routed experts whose matrices are in the plain formats, in f32: a warp an output, exact weights,
// sums in a fixed order. For models that are small, or not yet quantised; every token reads its
// experts by itself.
#include <algorithm>
#include <cstring>

#include "ops/cuda/dense_weight.cuh"
#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/scratch.cuh"

namespace onecard::ops::cuda {
namespace {

using Format = LinearWeight::Format;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct ExpertMatrix {
  DenseWeight weight;
  Format format;
};
struct ExpertEntry {
  ExpertMatrix gate, up, down;
};

template <Format kFormat>
__device__ float lane_dot(const DenseWeight& w, int64_t o, const float* x) {
  float sum = 0;
  for (int64_t i = threadIdx.x % 32; i < w.in; i += 32)
    sum = fmaf(weight_value<kFormat>(w, o, i), x[i], sum);
  return sum;
}

/// A lane's share of W[o,:] . x.
__device__ float lane_dot(const ExpertMatrix& matrix, int64_t o, const float* x) {
  switch (matrix.format) {
    case Format::kF32:
      return lane_dot<Format::kF32>(matrix.weight, o, x);
    case Format::kF16:
      return lane_dot<Format::kF16>(matrix.weight, o, x);
    case Format::kBf16:
      return lane_dot<Format::kBf16>(matrix.weight, o, x);
    case Format::kFp8Block32:
      return lane_dot<Format::kFp8Block32>(matrix.weight, o, x);
    case Format::kFp4Block32:
      return lane_dot<Format::kFp4Block32>(matrix.weight, o, x);
    case Format::kExl3:
      break;
  }
  return 0;
}

__device__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

/// hidden[choice,:] = weight * silu(min(gate, limit)) * clamp(up, +-limit).
__global__ __launch_bounds__(kThreads) void hidden_kernel(const ExpertEntry* experts,
                                                          int64_t num_experts, View<const float> x,
                                                          const int32_t* expert_ids,
                                                          const float* weights, int64_t per_token,
                                                          float limit, View<float> hidden) {
  const int64_t i = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32, choice = blockIdx.y;
  const int64_t id = expert_ids[choice];
  if (i >= hidden.cols || id < 0 || id >= num_experts) return;
  const float* const in = x.row(choice / per_token);
  const float gate = fminf(warp_sum(lane_dot(experts[id].gate, i, in)), limit);
  const float up = fmaxf(fminf(warp_sum(lane_dot(experts[id].up, i, in)), limit), -limit);
  if (threadIdx.x % 32 == 0)
    hidden.row(choice)[i] = weights[choice] * (gate / (1.0f + expf(-gate))) * up;
}

/// out[t,:] += the sum over the token's choices, in their order.
__global__ __launch_bounds__(kThreads) void down_kernel(const ExpertEntry* experts,
                                                        int64_t num_experts,
                                                        const int32_t* expert_ids,
                                                        int64_t per_token, View<const float> hidden,
                                                        View<float> out) {
  const int64_t o = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32, token = blockIdx.y;
  if (o >= out.cols) return;
  float sum = 0;
  for (int64_t choice = token * per_token; choice < (token + 1) * per_token; ++choice) {
    const int64_t id = expert_ids[choice];
    if (id < 0 || id >= num_experts) continue;
    sum += warp_sum(lane_dot(experts[id].down, o, hidden.row(choice)));
  }
  if (threadIdx.x % 32 == 0) out.row(token)[o] += sum;
}

}  // namespace

std::vector<std::byte> plain_experts_table(std::span<const PlainExpert> experts) {
  const auto matrix = [](const LinearWeight& w) { return ExpertMatrix{dense_weight(w), w.format}; };
  std::vector<ExpertEntry> entries;
  for (const PlainExpert& expert : experts)
    entries.push_back({matrix(expert.gate), matrix(expert.up), matrix(expert.down)});
  std::vector<std::byte> bytes(entries.size() * sizeof(ExpertEntry));
  std::memcpy(bytes.data(), entries.data(), bytes.size());
  return bytes;
}

void plain_experts_add(const Exec& exec, const RoutedExperts& experts, View<const float> x,
                       View<const int32_t> expert_ids, View<const float> weights, View<float> out) {
  const auto* const table = reinterpret_cast<const ExpertEntry*>(experts.table);
  const int64_t per_token = expert_ids.cols, width = experts.intermediate_size;
  const int64_t token_bytes = per_token * width * int64_t(sizeof(float));
  const auto blocks = [](int64_t outputs) { return unsigned((outputs + kWarps - 1) / kWarps); };
  // As many tokens at a time as the scratch memory and a grid hold.
  const int64_t most = std::clamp<int64_t>((ScratchCutter(exec).left_bytes() - 256) / token_bytes,
                                           1, 65535 / per_token);
  for (int64_t begin = 0; begin < x.rows; begin += most) {
    const int64_t end = std::min(x.rows, begin + most), choices = (end - begin) * per_token;
    ScratchCutter scratch(exec);
    const View<float> hidden(scratch.take<float>(choices * width, "routed experts"), choices,
                             width);
    launch(exec, dim3(blocks(width), unsigned(choices)), dim3(kThreads), 0, hidden_kernel, table,
           experts.num_experts, x.rows_between(begin, end), expert_ids.row(begin),
           weights.row(begin), per_token, experts.swiglu_limit, hidden);
    launch(exec, dim3(blocks(out.cols), unsigned(end - begin)), dim3(kThreads), 0, down_kernel,
           table, experts.num_experts, expert_ids.row(begin), per_token, View<const float>(hidden),
           out.rows_between(begin, end));
  }
}

}  // namespace onecard::ops::cuda
