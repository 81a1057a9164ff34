#include "plan/serving_plan.h"

#include <algorithm>

#include "base/error.h"
#include "model/sequence_state.h"
#include "model/workspace_bytes.h"

namespace onecard::plan {
namespace {

// One slot, measured on two small ones: the layout is the state's own.
model::BytesByTokens slot_bytes(const model::ModelConfig& config) {
  constexpr int64_t kSmall = 1024, kLarge = 2048;
  const auto bytes = [&](int64_t capacity) {
    return double(model::SequenceState(config, {.capacity_tokens = capacity}).allocated_bytes());
  };
  const double small = bytes(kSmall);
  const double slope = (bytes(kLarge) - small) / double(kLarge - kSmall);
  return {small - slope * double(kSmall), slope};
}

model::BytesByTokens workspace_bytes(const model::ModelConfig& config, const ServingNeeds& needs) {
  const model::BytesByTokens prefill = model::workspace_bytes(config, needs.prefill_rows);
  const model::BytesByTokens decode = model::workspace_bytes(config, needs.num_slots);
  const int64_t stream_floats = config.hc_mult * (config.hidden_size + 1);
  const int64_t floats =
      needs.num_slots * needs.tail_rows * stream_floats + needs.logits_rows * config.vocab_size;
  return {prefill.fixed + decode.fixed + double(floats) * sizeof(float),
          prefill.per_token + decode.per_token};
}

std::string mib(int64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

}  // namespace

ServingPlan plan_serving(const model::ModelConfig& config, const ServingNeeds& needs,
                         const HostMemory& memory) {
  const model::BytesByTokens slot = slot_bytes(config);
  const model::BytesByTokens workspace = workspace_bytes(config, needs);
  const int64_t others = needs.program_bytes + needs.weight_bytes + needs.prefix_cache_bytes;
  ServingPlan plan;
  plan.slot_bytes = slot.at(needs.context_length);
  plan.workspace_bytes = workspace.at(needs.context_length);
  plan.total_bytes = others + needs.num_slots * plan.slot_bytes + plan.workspace_bytes;
  plan.fits = plan.total_bytes <= memory.usable_bytes;
  const double room =
      double(memory.usable_bytes - others) - needs.num_slots * slot.fixed - workspace.fixed;
  const double per_token = needs.num_slots * slot.per_token + workspace.per_token;
  if (room > 0 && per_token > 0)
    plan.largest_context_length =
        std::min(config.max_position_embeddings, int64_t(room / per_token));
  return plan;
}

void require_fit(const ServingPlan& plan, const ServingNeeds& needs, const HostMemory& memory) {
  if (plan.fits) return;
  std::string message =
      "memory: " + mib(plan.total_bytes) + " are needed (weights " + mib(needs.weight_bytes) +
      ", prefix cache " + mib(needs.prefix_cache_bytes) + ", " + std::to_string(needs.num_slots) +
      (needs.num_slots == 1 ? " sequence of " : " sequences of ") +
      std::to_string(needs.context_length) + " tokens " + mib(plan.slot_bytes * needs.num_slots) +
      ", workspace " + mib(plan.workspace_bytes) + ", program " + mib(needs.program_bytes) +
      "), and there are " + mib(memory.usable_bytes) + " (" + memory.limited_by + ")";
  if (plan.largest_context_length > 0)
    message += "; " + std::string(needs.context_flag) + ' ' +
               std::to_string(plan.largest_context_length) + " would fit";
  else
    message += "; no context length would fit";
  throw Error(ErrorCode::kResourceExhausted, message);
}

}  // namespace onecard::plan
