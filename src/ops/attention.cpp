#include "ops/attention.h"

#include "base/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {

void attention(const Exec& exec, View<const float> q, int64_t first_position,
               const AttentionKeys& keys, const IndexLists* selected, std::span<const float> sinks,
               View<float> out) {
  const auto num_heads = int64_t(sinks.size());
  require(q.same_shape(out) && num_heads >= 1 && q.cols == num_heads * keys.chunk.dim &&
              keys.ring.dim == keys.chunk.dim && keys.window >= 1 && keys.num_ring_rows >= 1 &&
              first_position >= keys.chunk_begin &&
              (selected == nullptr ||
               (selected->ids.rows == q.rows && keys.global.dim == keys.chunk.dim)),
          ErrorCode::kInvalidArgument,
          "attention: q and out must be [tokens, heads * dim], keys of dim, one list of groups a "
          "token");
  if (q.rows == 0) return;
  if (exec.backend == Backend::kCuda)
    return cuda::attention(exec, q, first_position, keys, selected, sinks, out);
  cpu::attention(exec, q, first_position, keys, selected, sinks, out);
}

}  // namespace onecard::ops
