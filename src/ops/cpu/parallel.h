// Splitting an op over the pool: by rows or by independent pieces, never in a way that a result
// could depend on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "device/exec.h"

namespace onecard::ops::cpu {

/// At least `size` floats for the calling thread alone, until its next call. Grows once to what the
/// largest step needs.
inline float* thread_scratch(int64_t size) {
  thread_local std::vector<float> scratch;
  if (int64_t(scratch.size()) < size) scratch.resize(size_t(size));
  return scratch.data();
}

/// Calls task(task_idx) for every task in [0, num_tasks).
template <typename Task>
void for_each_task(const Exec& exec, int64_t num_tasks, const Task& task) {
  if (exec.pool == nullptr || num_tasks <= 1) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i);
    return;
  }
  const auto run = [&task](int64_t task_idx, int) { task(task_idx); };
  exec.pool->run(num_tasks, std::ref(run));  // by reference: no allocation
}

/// Calls task(begin, end) over ranges that cover [0, num_rows). `row_cost` is a row's rough cost in
/// simple operations: what is cheaper than a hand-over to another thread is not handed over.
template <typename Task>
void for_each_row_range(const Exec& exec, int64_t num_rows, int64_t row_cost, const Task& task) {
  constexpr int64_t kMinTaskCost = 20000;  // about 5 us
  const int64_t rows_per_task = std::max<int64_t>(1, kMinTaskCost / std::max<int64_t>(1, row_cost));
  if (exec.pool == nullptr || num_rows <= rows_per_task) {
    if (num_rows > 0) task(int64_t{0}, num_rows);
    return;
  }
  for_each_task(exec, (num_rows + rows_per_task - 1) / rows_per_task, [&](int64_t task_idx) {
    const int64_t begin = task_idx * rows_per_task;
    task(begin, std::min(begin + rows_per_task, num_rows));
  });
}

}  // namespace onecard::ops::cpu
