// The planner's answer for a command that is about to load a model.
#pragma once

#include <cstdint>

#include "io/checkpoint.h"
#include "model/config.h"
#include "plan/serving_plan.h"

namespace onecard::cli {

/// Refuses with the planner's sentence (kResourceExhausted) what does not fit into the memory that
/// the machine, its control groups and `limit_mib` (0: no limit) leave; logs the plan otherwise.
/// Fills in `needs.weight_bytes` from the checkpoint.
void check_memory(const io::Checkpoint& checkpoint, const model::ModelConfig& config,
                  plan::ServingNeeds needs, int64_t limit_mib = 0);

}  // namespace onecard::cli
