#include "experts/cpu_experts.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "experts/exl3_experts.h"
#include "experts/exl3_timing.h"
#include "ops/linear.h"
#include "ops/swiglu.h"
#include "tensor/buffer.h"

namespace onecard::experts {
namespace {

constexpr int64_t kBlockRows = 64;  // of one expert at a time

// Experts up to this size are computed exactly: they are read from a cache, and a small model has
// few choices to make, so that a flipped one shows. Larger ones are a matter of bytes and cycles.
constexpr int64_t kExactExpertBytes = 1 << 20;

ops::Exl3Precision fitting_precision(const ExpertMatrices& expert) {
  int64_t bytes = 0;
  for (const auto* w : {&expert.gate, &expert.up, &expert.down})
    bytes += w->in_features * w->out_features * w->exl3.bits / 8;
  return bytes <= kExactExpertBytes ? ops::Exl3Precision::kF32 : ops::Exl3Precision::kInt16;
}

bool is_exl3(const ops::LinearWeight& weight) {
  return weight.format == ops::LinearWeight::Format::kExl3;
}

bool all_exl3(const ExpertWeights& weights) {
  return std::all_of(weights.experts.begin(), weights.experts.end(), [](const auto& expert) {
    return is_exl3(expert.gate) && is_exl3(expert.up) && is_exl3(expert.down);
  });
}

}  // namespace

struct CpuExperts::State {
  State(ExpertWeights weights_in, std::optional<ops::Exl3Precision> precision)
      : weights(std::move(weights_in)),
        input(kBlockRows * weights.hidden_size),
        gate(kBlockRows * weights.intermediate_size),
        up(kBlockRows * weights.intermediate_size),
        output(kBlockRows * weights.hidden_size),
        first_row(size_t(weights.experts_per_layer) + 1) {
    if (!weights.experts.empty() && all_exl3(weights))
      exl3.emplace(Exl3Experts::Options{
          .hidden_size = weights.hidden_size,
          .intermediate_size = weights.intermediate_size,
          .swiglu_limit = weights.swiglu_limit,
          .precision = precision.value_or(fitting_precision(weights.experts.front()))});
  }

  /// Sorts the routing by expert: the rows that chose expert e, ascending, are rows[first_row[e]]
  /// to rows[first_row[e + 1]].
  void sort_rows(const Routing& routing);
  std::span<const int64_t> rows_of(int64_t expert_id) const {
    return std::span(rows).subspan(first_row[size_t(expert_id)],
                                   first_row[size_t(expert_id) + 1] - first_row[size_t(expert_id)]);
  }
  std::span<const float> weights_of(int64_t expert_id) const {
    return std::span(row_weights).subspan(first_row[size_t(expert_id)], rows_of(expert_id).size());
  }
  void run_exl3(const Exec& exec, int64_t layer_idx, View<const float> x, View<float> out);
  void run_block(const Exec& exec, int64_t layer_idx, int64_t expert_id, View<const float> x,
                 std::span<const int64_t> block_rows, std::span<const float> block_weights,
                 View<float> out);

  const ExpertWeights weights;
  Buffer<float> input, gate, up, output;
  std::vector<size_t> first_row;  // [experts + 1]
  std::vector<int64_t> rows;
  std::vector<float> row_weights;
  std::optional<Exl3Experts> exl3;
  std::vector<Exl3ExpertRows> exl3_work;
  HiddenObserver observer;
};

void CpuExperts::State::sort_rows(const Routing& routing) {
  const auto num_choices = size_t(routing.expert_ids.rows * routing.expert_ids.cols);
  rows.resize(num_choices);
  row_weights.resize(num_choices);
  std::fill(first_row.begin(), first_row.end(), 0);
  for (int64_t t = 0; t < routing.expert_ids.rows; ++t)
    for (int64_t k = 0; k < routing.expert_ids.cols; ++k)
      ++first_row[size_t(routing.expert_ids.row(t)[k]) + 1];
  for (size_t e = 1; e < first_row.size(); ++e) first_row[e] += first_row[e - 1];
  // Each expert's begin runs to its end while its rows are filled in; then all move back by one.
  for (int64_t t = 0; t < routing.expert_ids.rows; ++t) {
    for (int64_t k = 0; k < routing.expert_ids.cols; ++k) {
      const size_t place = first_row[size_t(routing.expert_ids.row(t)[k])]++;
      rows[place] = t;
      row_weights[place] = routing.weights.row(t)[k];
    }
  }
  std::rotate(first_row.begin(), first_row.end() - 1, first_row.end());
  first_row[0] = 0;
}

void CpuExperts::State::run_exl3(const Exec& exec, int64_t layer_idx, View<const float> x,
                                 View<float> out) {
  exl3_work.clear();
  for (int64_t e = 0; e < weights.experts_per_layer; ++e) {
    if (rows_of(e).empty()) continue;
    const ExpertMatrices& expert = weights.at(layer_idx, e);
    exl3_work.push_back(
        {{expert.gate.exl3, expert.up.exl3, expert.down.exl3}, rows_of(e), weights_of(e)});
  }
  exl3->forward_add(exec, x, exl3_work, out);
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

CpuExperts::CpuExperts(ExpertWeights weights, std::optional<ops::Exl3Precision> precision)
    : state_(std::make_unique<State>(std::move(weights), precision)) {}
CpuExperts::~CpuExperts() = default;

void CpuExperts::set_precision(std::optional<ops::Exl3Precision> precision) {
  if (state_->exl3)
    state_->exl3->set_precision(
        precision.value_or(fitting_precision(state_->weights.experts.front())));
}

void CpuExperts::set_observer(HiddenObserver observer) { state_->observer = std::move(observer); }

std::optional<ExpertTiming> CpuExperts::choose_fastest(cpu::Isa isa,
                                                       std::span<const int> thread_counts) {
  if (!state_->exl3 || isa == cpu::Isa::kPlain) return std::nullopt;
  return choose_fastest_exl3(*state_->exl3, state_->weights, isa, thread_counts);
}

void CpuExperts::forward_add(const Exec& exec, int64_t layer_idx, View<const float> x,
                             const Routing& routing, View<float> out) {
  State& state = *state_;
  require(x.same_shape(out) && x.cols == state.weights.hidden_size &&
              routing.expert_ids.rows == x.rows && layer_idx >= 0 &&
              layer_idx < state.weights.num_layers,
          ErrorCode::kInvalidArgument,
          "forward_add: x and out must be [tokens, hidden], routing one row a token");
  for (int64_t t = 0; t < routing.expert_ids.rows; ++t)
    for (int64_t k = 0; k < routing.expert_ids.cols; ++k)
      ONECARD_ASSERT(routing.expert_ids.row(t)[k] >= 0 &&
                     routing.expert_ids.row(t)[k] < state.weights.experts_per_layer);
  state.sort_rows(routing);
  // The plain path is exact, and calibration needs to see what lies between the matrices.
  if (state.exl3 && exec.isa != cpu::Isa::kPlain && !state.observer)
    return state.run_exl3(exec, layer_idx, x, out);
  // Expert by expert in ascending order, so that a row's sum does not depend on the others.
  for (int64_t e = 0; e < state.weights.experts_per_layer; ++e) {
    const std::span<const int64_t> rows = state.rows_of(e);
    const std::span<const float> row_weights = state.weights_of(e);
    for (size_t begin = 0; begin < rows.size(); begin += kBlockRows) {
      const size_t count = std::min(rows.size() - begin, size_t(kBlockRows));
      state.run_block(exec, layer_idx, e, x, rows.subspan(begin, count),
                      row_weights.subspan(begin, count), out);
    }
  }
}

}  // namespace onecard::experts
