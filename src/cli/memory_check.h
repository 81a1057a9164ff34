// The planner's answer for a command that is about to load a model.
#pragma once

#include <cstdint>

#include "io/checkpoint.h"
#include "model/config.h"
#include "plan/serving_plan.h"

namespace onecard::cli {

/// What the checkpoint takes of memory: all but the n-gram tables, which stay on disk.
int64_t weight_bytes(const io::Checkpoint& checkpoint);

/// Refuses with the planner's sentence (kResourceExhausted) what does not fit into the memory that
/// the machine, its control groups and `limit_mib` (0: no limit) leave; logs the plan otherwise.
void check_memory(const model::ModelConfig& config, const plan::ServingNeeds& needs,
                  int64_t limit_mib = 0);

}  // namespace onecard::cli
