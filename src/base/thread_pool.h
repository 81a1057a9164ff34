// The CPU pool: a fixed set of threads that run one job at a time. Started only by the engine
// thread (or by a command line tool's main thread), never nested. A job is a number of independent
// tasks; which thread runs a task never changes its result. Idle threads spin for a short while (a
// decode step hands over hundreds of jobs), then sleep.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace onecard {

class ThreadPool {
 public:
  /// `num_threads` counts the calling thread: 1 means no extra thread at all. Throws
  /// kInvalidArgument below 1.
  explicit ThreadPool(int num_threads);
  /// As above; each new thread first calls on_start(thread_idx), 1 .. num_threads - 1, for instance
  /// to pin itself. on_start must not throw.
  ThreadPool(int num_threads, const std::function<void(int thread_idx)>& on_start);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  /// Runs task(task_idx, thread_idx) for every task_idx in [0, num_tasks); returns when all are
  /// done. Tasks are handed out by ticket, and a thread takes its next one when it is done with the
  /// last: up to num_threads() tasks may wait for one another. The first exception thrown by a task
  /// is rethrown here after all others have ended.
  void run(int64_t num_tasks, const std::function<void(int64_t task_idx, int thread_idx)>& task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onecard
