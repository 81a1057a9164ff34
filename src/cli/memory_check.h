// The planner's answer for a command that is about to load a model.
#pragma once

#include <cstdint>

#include "device/cuda_device.h"
#include "io/checkpoint.h"
#include "model/config.h"
#include "plan/serving_plan.h"

namespace onecard::cli {

/// What the checkpoint takes of memory: all but the n-gram tables, which stay on disk.
int64_t weight_bytes(const io::Checkpoint& checkpoint);

struct MemoryLimits {
  const CudaDevice* device = nullptr;  // where the model will lie; null: in host memory
  int64_t host_limit_mib = 0;          // 0: what the machine and its control groups leave
  int64_t vram_limit_mib = 0;          // 0: what is free on the device
};

/// Refuses with the planner's sentence (kResourceExhausted) what does not fit into the memory that
/// the limits leave; logs the plan otherwise.
void check_memory(const model::ModelConfig& config, const plan::ServingNeeds& needs,
                  const MemoryLimits& limits = {});

}  // namespace onecard::cli
