#include "experts/resident_experts.h"

#include <algorithm>

#include "base/error.h"
#include "device/memory.h"

namespace onecard::experts {
namespace {

bool is_exl3(const ExpertMatrices& expert) {
  using Format = ops::LinearWeight::Format;
  return expert.gate.format == Format::kExl3 && expert.up.format == Format::kExl3 &&
         expert.down.format == Format::kExl3;
}

/// The bytes of a layer's table; sets `instance`.
std::vector<std::byte> make_table(std::span<const ExpertMatrices> experts, int& instance) {
  if (std::all_of(experts.begin(), experts.end(), is_exl3)) {
    std::vector<exl3::ExpertView> views;
    for (const ExpertMatrices& expert : experts)
      views.push_back({expert.gate.exl3, expert.up.exl3, expert.down.exl3});
    return ops::routed_experts_table(views, instance);
  }
  std::vector<ops::PlainExpert> plain;
  for (const ExpertMatrices& expert : experts)
    plain.push_back({expert.gate, expert.up, expert.down});
  instance = ops::kPlainExperts;
  return ops::plain_experts_table(plain);
}

}  // namespace

ResidentExperts::ResidentExperts(const ExpertWeights& weights) {
  require(weights.experts_per_layer <= ops::kMaxRoutedExperts, ErrorCode::kUnsupported,
          "routed experts: more of them in a layer than run on CUDA");
  for (int64_t l = 0; l < weights.num_layers; ++l) {
    ops::RoutedExperts layer;
    layer.num_experts = weights.experts_per_layer;
    layer.hidden_size = weights.hidden_size;
    layer.intermediate_size = weights.intermediate_size;
    layer.swiglu_limit = weights.swiglu_limit;
    const std::vector<std::byte> table = make_table(
        std::span(weights.experts)
            .subspan(size_t(l * weights.experts_per_layer), size_t(weights.experts_per_layer)),
        layer.instance);
    tables_.emplace_back(int64_t(table.size()), Memory::kCuda);
    copy_now(Backend::kCuda, tables_.back().data(), table.data(), table.size());
    layer.table = tables_.back().data();
    layers_.push_back(layer);
  }
}

void ResidentExperts::forward_add(const Exec& exec, int64_t layer_idx, View<const float> x,
                                  const Routing& routing, View<float> out) {
  require(layer_idx >= 0 && layer_idx < int64_t(layers_.size()), ErrorCode::kInvalidArgument,
          "forward_add: there is no such layer");
  ops::routed_experts_add(exec, layers_[size_t(layer_idx)], x, routing.expert_ids, routing.weights,
                          out);
}

}  // namespace onecard::experts
