#include "ops/positions.h"

#include "base/error.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {

void count_up(const Exec& exec, int64_t first, int64_t step, std::span<int64_t> out) {
  if (exec.backend == Backend::kCuda) return cuda::count_up(exec, first, step, out);
  for (size_t i = 0; i < out.size(); ++i) out[i] = first + int64_t(i) * step;
}

void visible_groups(const Exec& exec, int64_t first_position, int64_t ratio,
                    std::span<int64_t> out) {
  require(ratio >= 1, ErrorCode::kInvalidArgument, "visible_groups: at least one token a group");
  if (exec.backend == Backend::kCuda) return cuda::visible_groups(exec, first_position, ratio, out);
  for (size_t t = 0; t < out.size(); ++t) out[t] = (first_position + int64_t(t) + 1) / ratio;
}

}  // namespace onecard::ops
