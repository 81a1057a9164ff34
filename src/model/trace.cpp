#include "model/trace.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace onecard::model {
namespace {

constexpr const char* kExperts = "experts";
constexpr const char* kSelected = "selected";

/// How many of `a` are not in `b`, whatever their order.
template <typename Values>
int64_t num_missing(const Values& a, const Values& b) {
  using Value = std::remove_cv_t<std::remove_reference_t<decltype(a[0])>>;
  const std::set<Value> known(b.begin(), b.end());
  return std::count_if(a.begin(), a.end(), [&](Value value) { return known.count(value) == 0; });
}

}  // namespace

void Trace::observe(int64_t layer_idx, std::string_view name, View<const float> values) {
  const auto [found, is_new] = step_of_.try_emplace({layer_idx, std::string(name)}, steps_.size());
  if (is_new) steps_.push_back({layer_idx, std::string(name), values.cols, {}});
  Step& step = steps_[found->second];
  for (int64_t row = 0; row < values.rows; ++row)
    step.values.insert(step.values.end(), values.row(row), values.row(row) + values.cols);
}

void Trace::selected(int64_t layer_idx, int64_t position, std::span<const int32_t> groups) {
  if (step_of_.try_emplace({layer_idx, kSelected}, steps_.size()).second)
    steps_.push_back({layer_idx, kSelected, 0, {}});
  selected_[{layer_idx, position}].assign(groups.begin(), groups.end());
}

void Trace::routed(int64_t layer_idx, View<const int32_t> expert_ids) {
  std::vector<float> ids;
  for (int64_t row = 0; row < expert_ids.rows; ++row)
    ids.insert(ids.end(), expert_ids.row(row), expert_ids.row(row) + expert_ids.cols);
  observe(layer_idx, kExperts, {ids.data(), expert_ids.rows, expert_ids.cols});
}

void Trace::clear() {
  steps_.clear();
  step_of_.clear();
  selected_.clear();
}

std::vector<Trace::Difference> Trace::differences(const Trace& other, int64_t row,
                                                  int64_t position) const {
  std::vector<Difference> all;
  for (const Step& step : steps_) {
    const auto found = other.step_of_.find({step.layer_idx, step.name});
    if (found == other.step_of_.end() || step.name == "latent") continue;
    Difference difference{step.layer_idx, step.name, 0, 0};
    if (step.name == kSelected) {
      const auto a = selected_.find({step.layer_idx, position});
      const auto b = other.selected_.find({step.layer_idx, position});
      if (a == selected_.end() || b == other.selected_.end()) continue;
      difference.num_other = num_missing(a->second, b->second);
      difference.relative =
          double(difference.num_other) / double(std::max<size_t>(1, a->second.size()));
      all.push_back(difference);
      continue;
    }
    const Step& theirs = other.steps_[found->second];
    const auto begin = size_t(row * step.cols), end = begin + size_t(step.cols);
    if (theirs.cols != step.cols || step.values.size() < end || theirs.values.size() < end)
      continue;
    const std::span<const float> a = std::span(step.values).subspan(begin, end - begin);
    const std::span<const float> b = std::span(theirs.values).subspan(begin, end - begin);
    if (step.name == kExperts) {
      difference.num_other = num_missing(a, b);
      difference.relative = double(difference.num_other) / double(a.size());
    } else {
      double error = 0, norm = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        error += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
        norm += double(a[i]) * a[i];
        difference.num_other += a[i] != b[i] ? 1 : 0;
      }
      difference.relative = error == 0 ? 0 : std::sqrt(error / norm);
    }
    all.push_back(difference);
  }
  return all;
}

}  // namespace onecard::model
