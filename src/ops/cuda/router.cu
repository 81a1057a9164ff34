#include "ops/cuda/device.cuh"
#include "ops/cuda/kernels.h"
#include "ops/router.h"

namespace onecard::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxSelected = 32;
constexpr int kMaxExperts = 1024;

__device__ float expert_score(float logit, float gate_temp) {
  const float x = logit / gate_temp;
  return sqrtf(x > 20.0f ? x : log1pf(expf(x)));
}

// One warp a token. In each round every lane offers the best of its experts that is worse than the
// one selected last (by score, then by id), and the warp takes the best offer.
__global__ __launch_bounds__(kThreads) void route_kernel(View<const float> logits,
                                                         const float* bias, RouterOptions options,
                                                         View<int32_t> expert_ids,
                                                         View<float> weights) {
  __shared__ float all_scores[kWarps][kMaxExperts];
  const int lane = int(threadIdx.x) % 32;
  const int64_t token = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= logits.rows) return;
  const int num_experts = int(logits.cols), num_selected = int(expert_ids.cols);
  float* const scores = all_scores[threadIdx.x / 32];
  for (int e = lane; e < num_experts; e += 32)
    scores[e] = expert_score(logits.row(token)[e], options.gate_temp);
  __syncwarp();
  float last_score = INFINITY;
  int last_id = -1;
  float sum = 0, kept_score = 0;
  int kept_id = 0;
  for (int k = 0; k < num_selected; ++k) {
    float best = -INFINITY;
    int best_id = num_experts;
    for (int e = lane; e < num_experts; e += 32) {
      const float score = scores[e] + bias[e];
      const bool taken = score > last_score || (score == last_score && e <= last_id);
      if (!taken && (score > best || best_id == num_experts)) {
        best = score;
        best_id = e;
      }
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(~0u, best, distance);
      const int other_id = __shfl_xor_sync(~0u, best_id, distance);
      if (other_id < num_experts &&
          (best_id == num_experts || other > best || (other == best && other_id < best_id))) {
        best = other;
        best_id = other_id;
      }
    }
    if (best_id >= num_experts) best_id = 0;  // scores that are no numbers
    last_score = best;
    last_id = best_id;
    const float score = scores[best_id];
    sum += score;
    if (lane == k) {
      kept_id = best_id;
      kept_score = score;
    }
  }
  if (lane >= num_selected) return;
  const bool normalise = options.norm_topk_prob && num_selected > 1;
  expert_ids.row(token)[lane] = kept_id;
  weights.row(token)[lane] =
      options.routed_scaling_factor * kept_score / (normalise ? sum + 1e-20f : 1.0f);
}

}  // namespace

void route(const Exec& exec, View<const float> logits, std::span<const float> bias,
           const RouterOptions& options, View<int32_t> expert_ids, View<float> weights) {
  require(expert_ids.cols <= kMaxSelected && logits.cols <= kMaxExperts, ErrorCode::kUnsupported,
          "route: at most 32 of 1024 experts a token on CUDA");
  launch(exec, dim3(unsigned((logits.rows + kWarps - 1) / kWarps)), dim3(kThreads), 0, route_kernel,
         logits, bias.data(), options, expert_ids, weights);
}

}  // namespace onecard::ops::cuda
