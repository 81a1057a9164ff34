#include "cli/memory_check.h"

#include <string>

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

void check_memory(const model::ModelConfig& config, const plan::ServingNeeds& needs,
                  int64_t limit_mib) {
  plan::HostMemory memory = plan::host_memory();
  if (limit_mib > 0 && (limit_mib << 20) < memory.usable_bytes)
    memory = {limit_mib << 20, "--host-limit-mib"};
  const plan::ServingPlan serving_plan = plan::plan_serving(config, needs, memory);
  plan::require_fit(serving_plan, needs, memory);
  log::info("plan", {{"needed_mib", std::to_string(serving_plan.total_bytes >> 20)},
                     {"usable_mib", std::to_string(memory.usable_bytes >> 20)},
                     {"limited_by", memory.limited_by}});
}

}  // namespace onecard::cli
