#include "ops/attention.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_kernels.h"

namespace onecard::ops::cpu {
namespace {

constexpr int64_t kQueriesPerTask = 16;  // neighbours: their windows overlap

struct Job {
  const RowKernels& kernels;
  View<const float> q;
  int64_t first_position;
  const AttentionKeys& keys;
  const IndexLists* selected;
  std::span<const float> sinks;
  View<float> out;

  int64_t window_start(int64_t position) const {
    return std::max({keys.window_begin, position - keys.window + 1, int64_t{0}});
  }

  void unpack_window(int64_t begin, int64_t end, float* rows) const {
    for (int64_t p = begin; p < end; ++p, rows += keys.chunk.dim) {
      const std::byte* row = p >= keys.chunk_begin ? keys.chunk.row(p - keys.chunk_begin)
                                                   : keys.ring.row(p % keys.num_ring_rows);
      kernels.unpack(keys.chunk.format, row, keys.chunk.dim, rows);
    }
  }

  /// Rows [first_row, last_row) of heads [first_head, last_head).
  void run(int64_t first_row, int64_t last_row, int64_t first_head, int64_t last_head) const {
    const int64_t dim = keys.chunk.dim;
    const auto scale = float(1.0 / std::sqrt(double(dim)));
    const int64_t max_selected = selected != nullptr ? selected->ids.cols : 0;
    const int64_t window_begin = window_start(first_position + first_row);
    const int64_t window_end = first_position + last_row;
    const int64_t heads_here = last_head - first_head;
    float* window_rows = thread_scratch((window_end - window_begin + max_selected) * dim +
                                        heads_here * (keys.window + max_selected + 1));
    float* global_rows = window_rows + (window_end - window_begin) * dim;
    float* factors = global_rows + max_selected * dim;
    float* a = factors + heads_here;  // [heads][rows of a query]
    unpack_window(window_begin, window_end, window_rows);
    for (int64_t t = first_row; t < last_row; ++t) {
      const int64_t position = first_position + t;
      const int64_t start = window_start(position);
      const int64_t num_window = position + 1 - start;
      const float* window = window_rows + (start - window_begin) * dim;
      const int64_t num_global = selected != nullptr ? selected->counts[size_t(t)] : 0;
      for (int64_t j = 0; j < num_global; ++j)
        kernels.unpack(keys.global.format, keys.global.row(selected->ids.row(t)[j]), dim,
                       global_rows + j * dim);
      const int64_t num_rows = num_window + num_global, num_heads = last_head - first_head;
      const float* query = q.row(t) + first_head * dim;
      float* result = out.row(t) + first_head * dim;
      kernels.score_rows(query, num_heads, window, num_window, dim, scale, a, num_rows);
      kernels.score_rows(query, num_heads, global_rows, num_global, dim, scale, a + num_window,
                         num_rows);
      for (int64_t h = 0; h < num_heads; ++h) {
        float* const weights = a + h * num_rows;
        const float sink = sinks[size_t(first_head + h)];
        const float largest = std::max(*std::max_element(weights, weights + num_rows), sink);
        const double denominator =
            kernels.exp_sum(weights, num_rows, largest) + std::exp(double(sink) - largest);
        factors[h] = float(1.0 / denominator);
      }
      std::fill(result, result + num_heads * dim, 0.0f);
      kernels.mix_rows(a, num_rows, num_heads, window, num_window, dim, factors, result);
      kernels.mix_rows(a + num_window, num_rows, num_heads, global_rows, num_global, dim, factors,
                       result);
    }
  }
};

}  // namespace

void attention(const Exec& exec, View<const float> q, int64_t first_position,
               const AttentionKeys& keys, const IndexLists* selected, std::span<const float> sinks,
               View<float> out) {
  const Job job{row_kernels(exec.isa), q, first_position, keys, selected, sinks, out};
  const auto num_heads = int64_t(sinks.size());
  const int64_t num_threads = exec.pool != nullptr ? exec.pool->num_threads() : 1;
  const int64_t num_blocks = (q.rows + kQueriesPerTask - 1) / kQueriesPerTask;
  // Rows are unpacked again for each group of heads, so heads are divided only where rows alone do
  // not give every thread its share.
  const int64_t num_groups = num_blocks >= 2 * num_threads ? 1 : std::min(num_heads, num_threads);
  for_each_task(exec, num_blocks * num_groups, [&](int64_t task_idx) {
    const int64_t first_row = task_idx / num_groups * kQueriesPerTask;
    const int64_t group = task_idx % num_groups;
    job.run(first_row, std::min(first_row + kQueriesPerTask, q.rows),
            group * num_heads / num_groups, (group + 1) * num_heads / num_groups);
  });
}

}  // namespace onecard::ops::cpu
