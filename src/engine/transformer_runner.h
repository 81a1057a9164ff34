// The real model behind ModelRunner: sequence states in slots, prefill passes and decode steps with
// a workspace each.
#pragma once

#include <cstdint>
#include <memory>

#include "device/cpu/isa.h"
#include "device/cuda_device.h"
#include "engine/model_runner.h"
#include "engine/prefill_pass.h"
#include "model/model.h"

namespace onecard::engine {

struct TransformerOptions {
  int num_slots = 4;
  int64_t context_length = 0;  // tokens that a slot holds
  int64_t prefill_chunk_tokens = 512;
  PrefillMode prefill_mode = PrefillMode::kExact;
  std::shared_ptr<const CudaDevice> device = nullptr;  // that the model was loaded on; null: CPU
  cpu::Isa isa = cpu::Isa::kPlain;                     // CPU
  int num_threads = 1;                  // of the CPU pool, the engine thread included
  bool dense_int16 = false;             // Exec::dense_int16
  int64_t prefix_cache_bytes = 0;       // 0: nothing is kept
  int64_t prefix_stride_tokens = 1024;  // how often the inside of a prompt is kept
};

/// Rows of its workspace for prefill, and of encoder output that every prompt being read keeps.
int64_t prefill_workspace_rows(const model::ModelConfig& config, const TransformerOptions& options);
int64_t prefill_tail_rows(const model::ModelConfig& config, const TransformerOptions& options);

/// Allocates everything that a step needs. Throws kInvalidArgument on options out of range.
std::unique_ptr<ModelRunner> make_transformer_runner(std::unique_ptr<model::Model> model,
                                                     const TransformerOptions& options);

}  // namespace onecard::engine
