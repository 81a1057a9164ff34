// All routed experts on the CPU, every one of them in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "experts/expert_engine.h"
#include "experts/expert_weights.h"
#include "ops/exl3_kernels.h"
#include "tensor/view.h"

namespace onecard::experts {

class CpuExperts final : public ExpertEngine {
 public:
  /// `precision`: of EXL3 experts on every ISA but the plain one; nothing: what fits their size.
  explicit CpuExperts(ExpertWeights weights,
                      std::optional<ops::Exl3Precision> precision = std::nullopt);
  ~CpuExperts() override;

  void forward_add(const Exec& exec, int64_t layer_idx, View<const float> x, const Routing& routing,
                   View<float> out) override;

  /// Nothing for the plain ISA, and where not all experts are EXL3.
  std::optional<ExpertTiming> choose_fastest(cpu::Isa isa,
                                             std::span<const int> thread_counts) override;

  /// As at construction; between calls.
  void set_precision(std::optional<ops::Exl3Precision> precision);

  /// Shows the input of an expert's down projection, [its rows, intermediate], for calibration.
  using HiddenObserver =
      std::function<void(int64_t layer_idx, int64_t expert_id, View<const float> hidden)>;
  void set_observer(HiddenObserver observer);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onecard::experts
