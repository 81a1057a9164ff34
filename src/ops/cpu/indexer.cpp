#include "ops/indexer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_kernels.h"

namespace onecard::ops::cpu {
namespace {

constexpr float kNotSelectable = -std::numeric_limits<float>::infinity();
constexpr int64_t kQueriesPerTask = 16;
constexpr int64_t kScratchFloats = 8192;  // unpacked keys of a tile: 32 KiB

/// Keys [begin, end) unpacked when the first query asks for them.
class KeyTile {
 public:
  KeyTile(const RowKernels& kernels, const ConstKvRows& keys, int64_t begin, int64_t end)
      : kernels_(kernels), keys_(keys), begin_(begin), end_(end) {}

  const float* key(int64_t group) {
    if (!unpacked_) {
      for (int64_t g = begin_; g < end_; ++g)
        kernels_.unpack(keys_.format, keys_.row(g), keys_.dim, rows_ + (g - begin_) * keys_.dim);
      unpacked_ = true;
    }
    return rows_ + (group - begin_) * keys_.dim;
  }

 private:
  const RowKernels& kernels_;
  const ConstKvRows& keys_;
  int64_t begin_, end_;
  bool unpacked_ = false;
  float rows_[kScratchFloats];
};

/// f32 as an unsigned number of the same order; -0 as +0.
uint32_t ordered_key(float value) {
  const auto bits = std::bit_cast<uint32_t>(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The k-th highest key of scores[0, n), and how many keys are higher. Three rounds of counting, 11
/// + 11 + 10 bits; needs k <= the number of selectable scores.
struct Threshold {
  uint32_t key = 0;
  int64_t num_above = 0;
};

Threshold find_threshold(const float* scores, int64_t n, int64_t k) {
  Threshold result;
  uint32_t known_mask = 0;
  for (const auto& [shift, bits] : {std::pair{21, 11}, std::pair{10, 11}, std::pair{0, 10}}) {
    uint32_t counts[2048] = {};
    const uint32_t digit_mask = (1u << bits) - 1;
    for (int64_t g = 0; g < n; ++g) {
      const uint32_t key = ordered_key(scores[g]);
      if (scores[g] > kNotSelectable && (key & known_mask) == result.key)
        ++counts[key >> shift & digit_mask];
    }
    uint32_t digit = digit_mask;
    while (result.num_above + counts[digit] < k) result.num_above += counts[digit--];
    result.key |= digit << shift;
    known_mask |= digit_mask << shift;
  }
  return result;
}

int32_t select_row(const float* scores, int64_t n, int64_t k, int32_t* ids) {
  int64_t available = 0;
  for (int64_t g = 0; g < n; ++g) available += scores[g] > kNotSelectable ? 1 : 0;
  int32_t count = 0;
  if (available <= k) {
    for (int64_t g = 0; g < n; ++g)
      if (scores[g] > kNotSelectable) ids[count++] = int32_t(g);
    return count;
  }
  const Threshold threshold = find_threshold(scores, n, k);
  int64_t ties_left = k - threshold.num_above;  // the lowest indices among equals
  for (int64_t g = 0; g < n && count < k; ++g) {
    if (!(scores[g] > kNotSelectable)) continue;
    const uint32_t key = ordered_key(scores[g]);
    if (key > threshold.key || (key == threshold.key && ties_left-- > 0)) ids[count++] = int32_t(g);
  }
  return count;
}

}  // namespace

void indexer_scores(const Exec& exec, View<const float> q, View<const float> w,
                    const ConstKvRows& keys, std::span<const int64_t> num_visible,
                    const IndexLists* candidates, int64_t block_size, View<float> scores) {
  const RowKernels& kernels = row_kernels(exec.isa);
  const auto scale = float(1.0 / std::sqrt(double(w.cols * keys.dim)));
  const int64_t tile_keys = std::min<int64_t>(128, kScratchFloats / keys.dim);
  const int64_t num_blocks = (q.rows + kQueriesPerTask - 1) / kQueriesPerTask;
  const int64_t most = *std::max_element(num_visible.begin(), num_visible.end());
  const int64_t num_tiles = (most + tile_keys - 1) / tile_keys;
  const auto run = [&](int64_t task_idx) {
    const int64_t first_row = task_idx / num_tiles * kQueriesPerTask;
    const int64_t last_row = std::min(first_row + kQueriesPerTask, q.rows);
    const int64_t begin = task_idx % num_tiles * tile_keys;
    KeyTile tile(kernels, keys, begin, std::min(begin + tile_keys, most));
    for (int64_t t = first_row; t < last_row; ++t) {
      const int64_t end = std::min(begin + tile_keys, num_visible[size_t(t)]);
      if (end <= begin) continue;
      const auto score = [&](int64_t from, int64_t to) {
        kernels.index_scores(q.row(t), w.row(t), tile.key(from), w.cols, to - from, keys.dim, scale,
                             scores.row(t) + from);
      };
      if (candidates == nullptr || candidates->counts[size_t(t)] == kAllBlocks) {
        score(begin, end);
        continue;
      }
      std::fill(scores.row(t) + begin, scores.row(t) + end, kNotSelectable);
      const int32_t* kept = candidates->ids.row(t);
      const int32_t* kept_end = kept + candidates->counts[size_t(t)];
      for (kept = std::lower_bound(kept, kept_end, begin / block_size);
           kept != kept_end && *kept * block_size < end; ++kept) {
        const int64_t from = std::max(begin, *kept * block_size);
        const int64_t to = std::min(end, (*kept + 1) * block_size);
        score(from, to);
      }
    }
  };
  for_each_task(exec, num_blocks * num_tiles, run);
}

void select_top_k(const Exec& exec, View<const float> scores, std::span<const int64_t> num_visible,
                  const IndexLists& out) {
  for_each_row_range(exec, scores.rows, 8 * scores.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      out.counts[size_t(t)] =
          select_row(scores.row(t), num_visible[size_t(t)], out.ids.cols, out.ids.row(t));
  });
}

void select_candidate_blocks(const Exec& exec, View<const float> scores,
                             std::span<const int64_t> num_visible, int64_t block_size,
                             View<float> block_scores, const IndexLists& out) {
  for_each_row_range(exec, scores.rows, 4 * scores.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t visible = num_visible[size_t(t)];
      const int64_t num_blocks = (visible + block_size - 1) / block_size;
      if (num_blocks <= out.ids.cols) {
        out.counts[size_t(t)] = kAllBlocks;
        continue;
      }
      float* best = block_scores.row(t);
      for (int64_t b = 0; b < num_blocks; ++b) {
        const float* first = scores.row(t) + b * block_size;
        best[b] = *std::max_element(first, first + std::min(block_size, visible - b * block_size));
      }
      best[num_blocks - 1] = std::numeric_limits<float>::infinity();
      out.counts[size_t(t)] = select_row(best, num_blocks, out.ids.cols, out.ids.row(t));
    }
  });
}

}  // namespace onecard::ops::cpu
