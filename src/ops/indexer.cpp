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

void check_scores(const Exec& exec, View<const float> q, View<const float> w,
                  const ConstKvRows& keys, std::span<const int64_t> num_visible,
                  const IndexLists* candidates, int64_t block_size, View<float> scores) {
  require(keys.dim >= 1 && keys.dim <= kMaxIndexDim && q.cols == w.cols * keys.dim &&
              q.rows == w.rows && q.rows == scores.rows && int64_t(num_visible.size()) == q.rows &&
              largest(exec, num_visible) <= scores.cols &&
              (candidates == nullptr || (candidates->ids.rows == q.rows && block_size >= 1)),
          ErrorCode::kInvalidArgument,
          "indexer_scores: q must be [tokens, heads * dim], w [tokens, heads], scores [tokens, "
          "visible groups]");
}

}  // namespace

void indexer_scores(const Exec& exec, View<const float> q, View<const float> w,
                    const ConstKvRows& keys, std::span<const int64_t> num_visible,
                    const IndexLists* candidates, int64_t block_size, View<float> scores) {
  check_scores(exec, q, w, keys, num_visible, candidates, block_size, scores);
  if (exec.backend == Backend::kCuda)
    return cuda::indexer_scores(exec, q, w, keys, nullptr, num_visible, candidates, block_size,
                                scores);
  cpu::indexer_scores(exec, q, w, keys, num_visible, candidates, block_size, scores);
}

void indexer_scores_each(const Exec& exec, View<const float> q, View<const float> w,
                         const ConstKvRows& format, std::span<const std::byte* const> key_rows,
                         std::span<const int64_t> num_visible, const IndexLists* candidates,
                         int64_t block_size, View<float> scores) {
  check_scores(exec, q, w, format, num_visible, candidates, block_size, scores);
  require(int64_t(key_rows.size()) == q.rows, ErrorCode::kInvalidArgument,
          "indexer_scores_each: keys for every token");
  if (exec.backend == Backend::kCuda)
    return cuda::indexer_scores(exec, q, w, format, key_rows.data(), num_visible, candidates,
                                block_size, scores);
  for (int64_t t = 0; t < q.rows; ++t) {
    ConstKvRows keys = format;
    keys.data = key_rows[size_t(t)];
    IndexLists list;
    if (candidates != nullptr) list = candidates->rows_between(t, t + 1);
    cpu::indexer_scores(exec, q.rows_between(t, t + 1), w.rows_between(t, t + 1), keys,
                        num_visible.subspan(size_t(t), 1), candidates != nullptr ? &list : nullptr,
                        block_size, scores.rows_between(t, t + 1));
  }
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
