#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "base/error.h"

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

}  // namespace
}  // namespace onecard
