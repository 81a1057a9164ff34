#include "ops/indexer.h"

#include <algorithm>

#include "base/error.h"
#include "ops/check.h"
#include "ops/cpu/kernels.h"

namespace onecard::ops {
namespace {

int64_t largest(std::span<const int64_t> values) {
  int64_t result = 0;
  for (const int64_t value : values) result = std::max(result, value);
  return result;
}

}  // namespace

void indexer_scores(const Exec& exec, View<const float> q, View<const float> w,
                    const ConstKvRows& keys, std::span<const int64_t> num_visible,
                    const IndexLists* candidates, int64_t block_size, View<float> scores) {
  require_cpu(exec, "indexer_scores");
  require(keys.dim >= 1 && keys.dim <= kMaxIndexDim && q.cols == w.cols * keys.dim &&
              q.rows == w.rows && q.rows == scores.rows && int64_t(num_visible.size()) == q.rows &&
              largest(num_visible) <= scores.cols &&
              (candidates == nullptr || (candidates->ids.rows == q.rows && block_size >= 1)),
          ErrorCode::kInvalidArgument,
          "indexer_scores: q must be [tokens, heads * dim], w [tokens, heads], scores [tokens, "
          "visible groups]");
  cpu::indexer_scores(exec, q, w, keys, num_visible, candidates, block_size, scores);
}

void select_top_k(const Exec& exec, View<const float> scores, std::span<const int64_t> num_visible,
                  const IndexLists& out) {
  require_cpu(exec, "select_top_k");
  require(int64_t(num_visible.size()) == scores.rows && largest(num_visible) <= scores.cols &&
              out.ids.rows == scores.rows && int64_t(out.counts.size()) == scores.rows,
          ErrorCode::kInvalidArgument,
          "select_top_k: scores must be [tokens, visible groups], out one list a token");
  cpu::select_top_k(exec, scores, num_visible, out);
}

void select_candidate_blocks(const Exec& exec, View<const float> scores,
                             std::span<const int64_t> num_visible, int64_t block_size,
                             View<float> block_scores, const IndexLists& out) {
  require_cpu(exec, "select_candidate_blocks");
  require(int64_t(num_visible.size()) == scores.rows && largest(num_visible) <= scores.cols &&
              block_size >= 1 && block_scores.rows >= scores.rows &&
              block_scores.cols * block_size >= largest(num_visible) &&
              out.ids.rows == scores.rows && int64_t(out.counts.size()) == scores.rows,
          ErrorCode::kInvalidArgument,
          "select_candidate_blocks: scores must be [tokens, visible groups], block_scores [tokens, "
          "blocks], out one list a token");
  cpu::select_candidate_blocks(exec, scores, num_visible, block_size, block_scores, out);
}

}  // namespace onecard::ops
