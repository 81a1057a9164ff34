#include "base/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace onecard {
namespace {

// About 20 us on a 3 GHz core: longer than the gap between two ops of a decode step, shorter than
// anyone notices.
constexpr int kSpins = 2000;

inline void pause() { __builtin_ia32_pause(); }

}  // namespace

struct ThreadPool::State {
  std::vector<std::jthread> threads;
  std::mutex mutex;  // guards sleeping and waking only; jobs are published through `generation`
  std::condition_variable wake;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};

  // The current job. Written by run() before `generation` grows, read by workers after.
  const std::function<void(int64_t, int)>* task = nullptr;
  int64_t num_tasks = 0;
  std::atomic<int64_t> next{0};
  std::atomic<int> running{0};
  std::exception_ptr error;  // guarded by error_mutex
  std::mutex error_mutex;

  void work(int thread_idx) {
    for (;;) {
      const int64_t task_idx = next.fetch_add(1, std::memory_order_relaxed);
      if (task_idx >= num_tasks) return;
      try {
        (*task)(task_idx, thread_idx);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
      }
    }
  }

  void worker(int thread_idx) {
    uint64_t seen = 0;
    for (;;) {
      int spins = 0;
      while (generation.load(std::memory_order_acquire) == seen) {
        if (stop.load(std::memory_order_relaxed)) return;
        if (++spins < kSpins) {
          pause();
          continue;
        }
        std::unique_lock lock(mutex);
        sleepers.fetch_add(1);
        wake.wait(lock, [&] { return generation.load() != seen || stop.load(); });
        sleepers.fetch_sub(1);
      }
      seen = generation.load(std::memory_order_acquire);
      work(thread_idx);
      running.fetch_sub(1, std::memory_order_release);
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : ThreadPool(num_threads, nullptr) {}

ThreadPool::ThreadPool(int num_threads, const std::function<void(int)>& on_start)
    : state_(std::make_unique<State>()) {
  require(num_threads >= 1, ErrorCode::kInvalidArgument, "thread pool: at least one thread");
  for (int i = 1; i < num_threads; ++i)
    state_->threads.emplace_back([state = state_.get(), i, on_start] {
      if (on_start) on_start(i);
      state->worker(i);
    });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop.store(true);
  }
  state_->wake.notify_all();
}

int ThreadPool::num_threads() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::run(int64_t num_tasks, const std::function<void(int64_t, int)>& task) {
  State& state = *state_;
  if (state.threads.empty() || num_tasks <= 1) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
    return;
  }
  state.task = &task;
  state.num_tasks = num_tasks;
  state.next.store(0, std::memory_order_relaxed);
  state.running.store(static_cast<int>(state.threads.size()), std::memory_order_relaxed);
  state.generation.fetch_add(1);
  if (state.sleepers.load() > 0) {
    const std::lock_guard lock(state.mutex);
    state.wake.notify_all();
  }
  state.work(0);
  // Every worker has to leave this job before the next one may overwrite it.
  for (int spins = 0; state.running.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins)
      pause();
    else
      std::this_thread::yield();
  }
  if (state.error) std::rethrow_exception(std::exchange(state.error, nullptr));
}

}  // namespace onecard
