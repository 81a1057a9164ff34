#include "experts/cpu_experts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "experts/exl3_experts.h"
#include "ops/linear.h"
#include "ops/swiglu.h"
#include "tensor/buffer.h"

namespace onecard::experts {
namespace {

constexpr int64_t kBlockRows = 64;  // of one expert at a time

}  // namespace

struct CpuExperts::State {
  explicit State(ExpertWeights weights_in)
      : weights(std::move(weights_in)),
        input(kBlockRows * weights.hidden_size),
        gate(kBlockRows * weights.intermediate_size),
        up(kBlockRows * weights.intermediate_size),
        output(kBlockRows * weights.hidden_size) {
    const bool all_exl3 =
        std::all_of(weights.experts.begin(), weights.experts.end(), [](const ExpertMatrices& e) {
          using Format = ops::LinearWeight::Format;
          return e.gate.format == Format::kExl3 && e.up.format == Format::kExl3 &&
                 e.down.format == Format::kExl3;
        });
    if (!all_exl3 || weights.experts.empty()) return;
    exl3 = std::make_unique<Exl3Experts>(
        Exl3Experts::Options{.hidden_size = weights.hidden_size,
                             .intermediate_size = weights.intermediate_size,
                             .swiglu_limit = weights.swiglu_limit});
    exl3_rows.resize(size_t(weights.experts_per_layer));
  }

  /// All experts of the layer as one job of the strip kernels.
  void run_exl3(const Exec& exec, int64_t layer_idx, View<const float> x, const Routing& routing,
                View<float> out);
  /// The rows that chose `expert_id`, by token.
  void find_rows(const Routing& routing, int64_t expert_id);
  void run_block(const Exec& exec, int64_t layer_idx, int64_t expert_id, View<const float> x,
                 std::span<const int64_t> block_rows, std::span<const float> block_weights,
                 View<float> out);

  const ExpertWeights weights;
  Buffer<float> input, gate, up, output;
  std::vector<int64_t> rows;
  std::vector<float> row_weights;
  HiddenObserver observer;

  struct ExpertRows {
    std::vector<int64_t> rows;
    std::vector<float> weights;
  };
  std::unique_ptr<Exl3Experts> exl3;  // null unless every expert is EXL3
  std::vector<ExpertRows> exl3_rows;  // of the current call, by expert
  std::vector<Exl3ExpertRows> exl3_work;
};

void CpuExperts::State::run_exl3(const Exec& exec, int64_t layer_idx, View<const float> x,
                                 const Routing& routing, View<float> out) {
  for (ExpertRows& chosen : exl3_rows) {
    chosen.rows.clear();
    chosen.weights.clear();
  }
  for (int64_t t = 0; t < routing.expert_ids.rows; ++t)
    for (int64_t k = 0; k < routing.expert_ids.cols; ++k) {
      ExpertRows& chosen = exl3_rows[size_t(routing.expert_ids.row(t)[k])];
      chosen.rows.push_back(t);
      chosen.weights.push_back(routing.weights.row(t)[k]);
    }
  exl3_work.clear();
  for (int64_t e = 0; e < weights.experts_per_layer; ++e) {
    const ExpertRows& chosen = exl3_rows[size_t(e)];
    if (chosen.rows.empty()) continue;
    const ExpertMatrices& expert = weights.at(layer_idx, e);
    exl3_work.push_back(
        {{expert.gate.exl3, expert.up.exl3, expert.down.exl3}, chosen.rows, chosen.weights});
  }
  exl3->forward_add(exec, x, exl3_work, out);
}

void CpuExperts::State::find_rows(const Routing& routing, int64_t expert_id) {
  rows.clear();
  row_weights.clear();
  for (int64_t t = 0; t < routing.expert_ids.rows; ++t) {
    for (int64_t k = 0; k < routing.expert_ids.cols; ++k) {
      if (routing.expert_ids.row(t)[k] != expert_id) continue;
      rows.push_back(t);
      row_weights.push_back(routing.weights.row(t)[k]);
    }
  }
}

void CpuExperts::State::run_block(const Exec& exec, int64_t layer_idx, int64_t expert_id,
                                  View<const float> x, std::span<const int64_t> block_rows,
                                  std::span<const float> block_weights, View<float> out) {
  const ExpertMatrices& expert = weights.at(layer_idx, expert_id);
  const auto num_rows = int64_t(block_rows.size());
  const View<float> in = input.view(num_rows, weights.hidden_size);
  const View<float> a = gate.view(num_rows, weights.intermediate_size);
  const View<float> b = up.view(num_rows, weights.intermediate_size);
  const View<float> y = output.view(num_rows, weights.hidden_size);
  for (int64_t i = 0; i < num_rows; ++i)
    std::copy_n(x.row(block_rows[size_t(i)]), x.cols, in.row(i));
  ops::linear(exec, in, expert.gate, a);
  ops::linear(exec, in, expert.up, b);
  ops::swiglu(exec, a, b, block_weights, weights.swiglu_limit, a);
  if (observer) observer(layer_idx, expert_id, a);
  ops::linear(exec, a, expert.down, y);
  for (int64_t i = 0; i < num_rows; ++i) {
    float* sum = out.row(block_rows[size_t(i)]);
    for (int64_t c = 0; c < y.cols; ++c) sum[c] += y.row(i)[c];
  }
}

CpuExperts::CpuExperts(ExpertWeights weights)
    : state_(std::make_unique<State>(std::move(weights))) {}
CpuExperts::~CpuExperts() = default;

void CpuExperts::set_observer(HiddenObserver observer) { state_->observer = std::move(observer); }

void CpuExperts::forward_add(const Exec& exec, int64_t layer_idx, View<const float> x,
                             const Routing& routing, View<float> out) {
  State& state = *state_;
  require(x.same_shape(out) && x.cols == state.weights.hidden_size &&
              routing.expert_ids.rows == x.rows && layer_idx >= 0 &&
              layer_idx < state.weights.num_layers,
          ErrorCode::kInvalidArgument,
          "forward_add: x and out must be [tokens, hidden], routing one row a token");
  // Either way expert by expert in ascending order, so that a row's sum does not depend on others.
  if (state.exl3 && exec.isa >= cpu::Isa::kAvx2 && !state.observer)
    return state.run_exl3(exec, layer_idx, x, routing, out);
  for (int64_t e = 0; e < state.weights.experts_per_layer; ++e) {
    state.find_rows(routing, e);
    const std::span<const int64_t> rows = state.rows;
    for (size_t begin = 0; begin < rows.size(); begin += kBlockRows) {
      const size_t count = std::min(rows.size() - begin, size_t(kBlockRows));
      state.run_block(exec, layer_idx, e, x, rows.subspan(begin, count),
                      std::span<const float>(state.row_weights).subspan(begin, count), out);
    }
  }
}

}  // namespace onecard::experts
