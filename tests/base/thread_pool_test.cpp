#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/spin_barrier.h"

namespace onecard {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  ThreadPool pool(4);
  for (int job = 0; job < 500; ++job) {
    std::vector<std::atomic<int>> counts(97);
    pool.run(97, [&](int64_t task, int) { counts[size_t(task)].fetch_add(1); });
    for (const auto& count : counts) ASSERT_EQ(count.load(), 1);
  }
}

TEST(ThreadPool, RethrowsTheFirstErrorAndGoesOn) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.run(50,
                        [](int64_t task, int) {
                          if (task == 17) throw Error(ErrorCode::kIo, "task 17");
                        }),
               Error);
  std::atomic<int> ran{0};
  pool.run(10, [&](int64_t, int) { ran.fetch_add(1); });
  EXPECT_EQ(ran.load(), 10);
}

TEST(ThreadPool, AsManyTasksAsThreadsMayWaitForOneAnother) {
  ThreadPool pool(5);
  SpinBarrier barrier;
  barrier.reset(5);
  for (int job = 0; job < 300; ++job) {
    std::vector<int> first(5), second(5);
    pool.run(5, [&](int64_t task, int) {
      first[size_t(task)] = 1;
      barrier.wait();
      second[size_t(task)] = std::accumulate(first.begin(), first.end(), 0);
      barrier.wait();
    });
    ASSERT_EQ(second, std::vector<int>(5, 5));
  }
}

TEST(ThreadPool, ThreadsAnnounceThemselvesOnce) {
  std::vector<std::atomic<int>> started(4);
  {
    ThreadPool pool(4, [&](int thread) { started[size_t(thread)].fetch_add(1); });
  }
  EXPECT_EQ(started[0].load(), 0);  // the caller
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(started[i].load(), 1);
}

}  // namespace
}  // namespace onecard
