// What serving a model takes of host memory, and whether it fits: decided before anything is
// loaded, by the same rule for every command.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"
#include "plan/host_memory.h"

namespace onecard::plan {

/// The program itself: code, tokenizer, buffers of connections. Measured on the demo model and
/// rounded up.
constexpr int64_t kProgramBytes = int64_t{64} << 20;

struct ServingNeeds {
  int64_t weight_bytes = 0;  // without the n-gram tables, which stay on disk
  int64_t prefix_cache_bytes = 0;
  int64_t program_bytes = kProgramBytes;  // on a device: the ops' scratch
  int num_slots = 1;
  int64_t context_length = 0;  // of every slot
  int64_t prefill_rows = 1;    // of the workspace that prompts are read with
  int64_t tail_rows = 0;       // of encoder output, kept for every prompt that is being read
  int64_t logits_rows = 1;
  /// How whoever calls the command says the context length, before its number: for the refusal.
  const char* context_flag = "--max-model-len";
};

struct ServingPlan {
  int64_t slot_bytes = 0;       // one slot's rows and windows
  int64_t workspace_bytes = 0;  // intermediates of prefill and decode, tails, logits
  int64_t total_bytes = 0;
  int64_t largest_context_length = 0;  // that fits with the same number of slots; 0: none
  bool fits = false;
};

ServingPlan plan_serving(const model::ModelConfig& config, const ServingNeeds& needs,
                         const HostMemory& memory);

/// Throws kResourceExhausted with one sentence when it does not fit: what is needed, what there is
/// and says who, and what would fit.
void require_fit(const ServingPlan& plan, const ServingNeeds& needs, const HostMemory& memory);

}  // namespace onecard::plan
