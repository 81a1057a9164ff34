#include "cli/memory_check.h"

#include <string>

#include "base/error.h"
#include "base/log.h"
#include "plan/host_memory.h"

namespace onecard::cli {

int64_t weight_bytes(const io::Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const io::StoredTensor& tensor : checkpoint.tensors())
    if (tensor.name.find("engram.embed") == std::string_view::npos)
      bytes += int64_t(tensor.bytes.size());
  return bytes;
}

namespace {

// On the device lies all but the prefix cache and the program.
void check_device(const CudaDevice& device, const model::ModelConfig& config,
                  plan::ServingNeeds needs, int64_t limit_mib) {
  constexpr int kLogitsBlockRows = 64;
  needs.prefix_cache_bytes = 0;
  needs.program_bytes = CudaDevice::kScratchBytes;
  needs.logits_rows = kLogitsBlockRows + needs.num_slots;
  plan::HostMemory memory{device.free_bytes(), "free on " + device.name()};
  if (limit_mib > 0 && (limit_mib << 20) < memory.usable_bytes)
    memory = {limit_mib << 20, "--vram-limit-mib"};
  const plan::ServingPlan plan = plan::plan_serving(config, needs, memory);
  plan::require_fit(plan, needs, memory);
  log::info("plan_device", {{"device", device.name()},
                            {"needed_mib", std::to_string(plan.total_bytes >> 20)},
                            {"usable_mib", std::to_string(memory.usable_bytes >> 20)},
                            {"limited_by", memory.limited_by}});
}

}  // namespace

void check_memory(const model::ModelConfig& config, const plan::ServingNeeds& needs,
                  const MemoryLimits& limits) {
  plan::HostMemory memory = plan::host_memory();
  if (limits.host_limit_mib > 0 && (limits.host_limit_mib << 20) < memory.usable_bytes)
    memory = {limits.host_limit_mib << 20, "--host-limit-mib"};
  if (limits.device != nullptr) {
    check_device(*limits.device, config, needs, limits.vram_limit_mib);
    // Weights pass through the host one at a time; logits end there.
    const int64_t host_bytes = needs.program_bytes + needs.prefix_cache_bytes +
                               needs.logits_rows * config.vocab_size * int64_t(sizeof(float));
    if (host_bytes > memory.usable_bytes)
      throw Error(ErrorCode::kResourceExhausted,
                  "memory: " + std::to_string(host_bytes >> 20) +
                      " MiB of the host are needed beside the device, most of them for the prefix "
                      "cache, and there are " +
                      std::to_string(memory.usable_bytes >> 20) + " MiB (" + memory.limited_by +
                      ")");
    return;
  }
  const plan::ServingPlan serving_plan = plan::plan_serving(config, needs, memory);
  plan::require_fit(serving_plan, needs, memory);
  log::info("plan", {{"needed_mib", std::to_string(serving_plan.total_bytes >> 20)},
                     {"usable_mib", std::to_string(memory.usable_bytes >> 20)},
                     {"limited_by", memory.limited_by}});
}

}  // namespace onecard::cli
