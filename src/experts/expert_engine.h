// The MoE seam. A layer adds its routed experts' output through this interface and never asks where
// an expert is. Called by the engine thread, between other ops of the same Exec; implementations
// own residency and their threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "device/exec.h"
#include "experts/expert_timing.h"
#include "tensor/view.h"

namespace onecard::experts {

/// Which experts each row chose, by descending selection score. ids: [tokens, experts_per_token];
/// weights: the same shape, multiplied into the expert's hidden activation before its down
/// projection.
struct Routing {
  View<const int32_t> expert_ids;
  View<const float> weights;
};

class ExpertEngine {
 public:
  virtual ~ExpertEngine() = default;

  /// out[t,:] += sum over the row's experts e of w2_e( weight * silu(min(gate, limit)) * clamp(up,
  /// +-limit) ). x, out: [tokens, hidden] f32. The result of a row does not depend on the other
  /// rows or on the number of threads. Throws kDataCorrupt or kIo when an expert cannot be read;
  /// `out` is then unspecified.
  virtual void forward_add(const Exec& exec, int64_t layer_idx, View<const float> x,
                           const Routing& routing, View<float> out) = 0;

  /// Finds by timing how experts are computed fastest on this machine, and computes them so from
  /// now on; no result changes. thread_counts: what the pool of later calls may have, the preferred
  /// count first. Called before the first forward_add; takes some tenths of a second. Nothing where
  /// there is nothing to choose.
  virtual std::optional<ExpertTiming> choose_fastest(cpu::Isa isa,
                                                     std::span<const int> thread_counts) {
    static_cast<void>(isa);
    static_cast<void>(thread_counts);
    return std::nullopt;
  }
};

}  // namespace onecard::experts
