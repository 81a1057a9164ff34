#include "ops/indexer.h"

#include <algorithm>

#include "base/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {
namespace {

/// 0 where the values lie on the device and cannot be looked at.
int64_t largest(const Exec& exec, std::span<const int64_t> values) {
  int64_t result = 0;
  if (exec.backend == Backend::kCuda) return result;
  for (const int64_t value : values) result = std::max(result, value);
  return result;
}

}  // namespace

void indexer_scores(const Exec& exec, View<const float> q, View<const float> w,
                    const ConstKvRows& keys, std::span<const int64_t> num_visible,
                    const IndexLists* candidates, int64_t block_size, View<float> scores) {
  require(keys.dim >= 1 && keys.dim <= kMaxIndexDim && q.cols == w.cols * keys.dim &&
              q.rows == w.rows && q.rows == scores.rows && int64_t(num_visible.size()) == q.rows &&
              largest(exec, num_visible) <= scores.cols &&
              (candidates == nullptr || (candidates->ids.rows == q.rows && block_size >= 1)),
          ErrorCode::kInvalidArgument,
          "indexer_scores: q must be [tokens, heads * dim], w [tokens, heads], scores [tokens, "
          "visible groups]");
  if (exec.backend == Backend::kCuda)
    return cuda::indexer_scores(exec, q, w, keys, num_visible, candidates, block_size, scores);
  cpu::indexer_scores(exec, q, w, keys, num_visible, candidates, block_size, scores);
}

void select_top_k(const Exec& exec, View<const float> scores, std::span<const int64_t> num_visible,
                  const IndexLists& out) {
  require(int64_t(num_visible.size()) == scores.rows && largest(exec, num_visible) <= scores.cols &&
              out.ids.rows == scores.rows && int64_t(out.counts.size()) == scores.rows,
          ErrorCode::kInvalidArgument,
          "select_top_k: scores must be [tokens, visible groups], out one list a token");
  if (exec.backend == Backend::kCuda) return cuda::select_top_k(exec, scores, num_visible, out);
  cpu::select_top_k(exec, scores, num_visible, out);
}

void select_candidate_blocks(const Exec& exec, View<const float> scores,
                             std::span<const int64_t> num_visible, int64_t block_size,
                             View<float> block_scores, const IndexLists& out) {
  require(int64_t(num_visible.size()) == scores.rows && largest(exec, num_visible) <= scores.cols &&
              block_size >= 1 && block_scores.rows >= scores.rows &&
              block_scores.cols * block_size >= largest(exec, num_visible) &&
              out.ids.rows == scores.rows && int64_t(out.counts.size()) == scores.rows,
          ErrorCode::kInvalidArgument,
          "select_candidate_blocks: scores must be [tokens, visible groups], block_scores [tokens, "
          "blocks], out one list a token");
  if (exec.backend == Backend::kCuda)
    return cuda::select_candidate_blocks(exec, scores, num_visible, block_size, block_scores, out);
  cpu::select_candidate_blocks(exec, scores, num_visible, block_size, block_scores, out);
}

}  // namespace onecard::ops
