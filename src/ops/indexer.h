// The lightning indexer: scores every visible group of a query cheaply, and selects the best.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "device/exec.h"
#include "ops/kv_rows.h"
#include "tensor/view.h"

namespace onecard::ops {

/// For each row, the numbers that it kept, ascending: the first counts[t] of ids row t.
struct IndexLists {
  View<int32_t> ids;          // [tokens, most that can be kept]
  std::span<int32_t> counts;  // [tokens]

  IndexLists rows_between(int64_t begin, int64_t end) const {
    return {ids.rows_between(begin, end), counts.subspan(size_t(begin), size_t(end - begin))};
  }
};

/// The widest index key.
constexpr int64_t kMaxIndexDim = 1024;

/// Counts of IndexLists of candidate blocks: every block was kept and ids are not written.
constexpr int32_t kAllBlocks = -1;

/// scores[t,g] = sum_h w[t,h] max(0, q[t,h] . key[g]) / sqrt(heads * dim)   for g < num_visible[t]
/// Outside the kept blocks of `candidates` (when given: of block_size groups each) it is -inf.
/// q: [tokens, heads * dim] f32; w: [tokens, heads]; keys: packed rows of dim; scores: [tokens, >=
/// the largest num_visible] (columns from num_visible[t] on are not written).
void indexer_scores(const Exec& exec, View<const float> q, View<const float> w,
                    const ConstKvRows& keys, std::span<const int64_t> num_visible,
                    const IndexLists* candidates, int64_t block_size, View<float> scores);

/// The same with keys of its own for every token: those of token t begin at key_rows[t]; `format`
/// is their format, without data.
void indexer_scores_each(const Exec& exec, View<const float> q, View<const float> w,
                         const ConstKvRows& format, std::span<const std::byte* const> key_rows,
                         std::span<const int64_t> num_visible, const IndexLists* candidates,
                         int64_t block_size, View<float> scores);

/// out row t = the min(out.ids.cols, available) highest of scores[t, 0..num_visible[t]), equal
/// scores by lower index first, listed ascending. -inf (and NaN) is never selected.
void select_top_k(const Exec& exec, View<const float> scores, std::span<const int64_t> num_visible,
                  const IndexLists& out);

/// Blocks of block_size consecutive groups; a block's score is the largest of its visible groups,
/// that of the newest visible group's block +inf. out row t = the out.ids.cols best blocks,
/// ascending, or kAllBlocks when there are no more blocks than that. `block_scores` is scratch:
/// [tokens, at least the blocks].
void select_candidate_blocks(const Exec& exec, View<const float> scores,
                             std::span<const int64_t> num_visible, int64_t block_size,
                             View<float> block_scores, const IndexLists& out);

}  // namespace onecard::ops
