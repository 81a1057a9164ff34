// Keeps what an Observer is shown in a pass, so that two runs of the same tokens can be compared
// value by value: where do they first differ, and was it a choice that tipped?
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/observer.h"

namespace onecard::model {

class Trace final : public Observer {
 public:
  void observe(int64_t layer_idx, std::string_view name, View<const float> values) override;
  void selected(int64_t layer_idx, int64_t position, std::span<const int32_t> groups) override;
  void routed(int64_t layer_idx, View<const int32_t> expert_ids) override;
  void clear();

  /// How far two traces of one pass are apart in one place.
  struct Difference {
    int64_t layer_idx = 0;
    std::string name;       // of the observer; "selected" and "experts" are choices
    double relative = 0;    // |a - b| / |a|; of choices, the share that differs
    int64_t num_other = 0;  // values or choices that are not the same
  };
  /// For row `row` of the pass, which is at `position`, in the order in which it was computed.
  /// Values that have no row of their own for every token (latents) are left out.
  std::vector<Difference> differences(const Trace& other, int64_t row, int64_t position) const;

 private:
  struct Step {
    int64_t layer_idx = 0;
    std::string name;
    int64_t cols = 0;
    std::vector<float> values;  // [rows, cols]
  };
  std::vector<Step> steps_;
  std::map<std::pair<int64_t, std::string>, size_t> step_of_;
  std::map<std::pair<int64_t, int64_t>, std::vector<int32_t>> selected_;  // by layer and position
};

}  // namespace onecard::model
