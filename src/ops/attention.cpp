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

void attention_each(const Exec& exec, View<const float> q, const EachKeys& keys,
                    const IndexLists* selected, std::span<const float> sinks, View<float> out) {
  const auto num_heads = int64_t(sinks.size());
  const auto num_queries = size_t(q.rows);
  require(q.same_shape(out) && num_heads >= 1 && q.cols == num_heads * keys.ring.dim &&
              keys.positions.size() == num_queries && keys.rings.size() == num_queries &&
              keys.window >= 1 && keys.num_ring_rows >= keys.window &&
              (selected == nullptr ||
               (selected->ids.rows == q.rows && keys.global.dim == keys.ring.dim &&
                keys.globals.size() == num_queries)),
          ErrorCode::kInvalidArgument,
          "attention_each: q and out must be [tokens, heads * dim], a position, a ring and global "
          "rows a token");
  if (exec.backend == Backend::kCuda)
    return cuda::attention_each(exec, q, keys, selected, sinks, out);
  for (int64_t t = 0; t < q.rows; ++t) {
    AttentionKeys own;
    own.ring = keys.ring;
    own.ring.data = keys.rings[size_t(t)];
    own.num_ring_rows = keys.num_ring_rows;
    const int64_t position = keys.positions[size_t(t)];
    own.chunk = own.ring;
    own.chunk.data = own.ring.row(position % keys.num_ring_rows);
    own.chunk_begin = position;
    own.window = keys.window;
    IndexLists list;
    if (selected != nullptr) {
      own.global = keys.global;
      own.global.data = keys.globals[size_t(t)];
      list = selected->rows_between(t, t + 1);
    }
    cpu::attention(exec, q.rows_between(t, t + 1), position, own,
                   selected != nullptr ? &list : nullptr, sinks, out.rows_between(t, t + 1));
  }
}

}  // namespace onecard::ops
