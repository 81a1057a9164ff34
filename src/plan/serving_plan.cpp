#include "plan/serving_plan.h"

#include <algorithm>

#include "base/error.h"
#include "model/sequence_state.h"

namespace onecard::plan {
namespace {

// Bytes of a slot as a + b * context, measured on two small ones: the layout is the state's own.
struct SlotSize {
  double fixed_bytes = 0;
  double bytes_per_token = 0;
};

SlotSize slot_size(const model::ModelConfig& config) {
  constexpr int64_t kSmall = 1024, kLarge = 2048;
  const auto bytes = [&](int64_t capacity) {
    return double(model::SequenceState(config, {.capacity_tokens = capacity}).allocated_bytes());
  };
  const double small = bytes(kSmall);
  const double slope = (bytes(kLarge) - small) / double(kLarge - kSmall);
  return {small - slope * double(kSmall), slope};
}

std::string mib(int64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

}  // namespace

ServingPlan plan_serving(const model::ModelConfig& config, const ServingNeeds& needs,
                         const HostMemory& memory) {
  const SlotSize slot = slot_size(config);
  ServingPlan plan;
  plan.slot_bytes = int64_t(slot.fixed_bytes + slot.bytes_per_token * double(needs.context_length));
  const int64_t others = needs.weight_bytes + needs.prefix_cache_bytes;
  plan.total_bytes = others + needs.num_slots * plan.slot_bytes;
  plan.fits = plan.total_bytes <= memory.usable_bytes;
  const double room = double(memory.usable_bytes - others) / needs.num_slots - slot.fixed_bytes;
  if (room > 0 && slot.bytes_per_token > 0)
    plan.largest_context_length =
        std::min(config.max_position_embeddings, int64_t(room / slot.bytes_per_token));
  return plan;
}

void require_fit(const ServingPlan& plan, const ServingNeeds& needs, const HostMemory& memory) {
  if (plan.fits) return;
  std::string message = "memory: " + mib(plan.total_bytes) + " are needed (weights " +
                        mib(needs.weight_bytes) + ", prefix cache " +
                        mib(needs.prefix_cache_bytes) + ", " + std::to_string(needs.num_slots) +
                        " sequences of " + std::to_string(needs.context_length) + " tokens " +
                        mib(plan.slot_bytes * needs.num_slots) + "), and there are " +
                        mib(memory.usable_bytes) + " (" + memory.limited_by + ")";
  if (plan.largest_context_length > 0)
    message += "; --max-model-len " + std::to_string(plan.largest_context_length) + " would fit";
  else
    message += "; no context length would fit";
  throw Error(ErrorCode::kResourceExhausted, message);
}

}  // namespace onecard::plan
