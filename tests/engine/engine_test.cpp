#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "engine/fake_runner.h"

namespace onecard::engine {
namespace {

using test::FakeRunner;

// Waits for the wake-ups of any number of sequences. The engine may still be inside a wake-up when
// the reader has its last event and goes: what a wake-up touches is shared, not the reader's.
class Waker {
 public:
  std::function<void()> callback() {
    return [state = state_] {
      const std::lock_guard lock(state->mutex);
      ++state->count;
      state->woken.notify_all();
    };
  }
  void wait() {
    std::unique_lock lock(state_->mutex);
    state_->woken.wait(lock, [this] { return state_->count > 0; });
    state_->count = 0;
  }

 private:
  struct State {
    std::mutex mutex;  // guards count
    std::condition_variable woken;
    int count = 0;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct Answer {
  std::vector<int32_t> tokens;
  FinishedEvent finished;
};

// Reads to the end by wake-ups alone: a lost one hangs the test.
Answer read(SequenceHandle& handle, Waker& waker) {
  Answer answer;
  for (;;) {
    while (auto event = handle.try_pop()) {
      if (const auto* token = std::get_if<TokenEvent>(&*event)) {
        answer.tokens.push_back(token->token);
      } else {
        answer.finished = std::get<FinishedEvent>(*event);
        return answer;
      }
    }
    waker.wait();
  }
}

SequenceRequest greedy_request(std::vector<int32_t> prompt, int64_t max_tokens,
                               std::function<void()> wake = {}) {
  SequenceRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  request.wake = std::move(wake);
  return request;
}

TEST(Engine, ReadersOnTheirOwnThreadsGetTheirSoloTokens) {
  Engine engine(std::make_unique<FakeRunner>(), {.prefill_chunk_tokens = 4});
  std::vector<std::jthread> readers;
  for (int r = 0; r < 6; ++r)
    readers.emplace_back([&engine, r] {
      for (int round = 0; round < 20; ++round) {
        const std::vector<int32_t> prompt(size_t(1 + (r * 7 + round) % 23), r + round);
        Waker waker;
        auto submission = engine.submit(greedy_request(prompt, 12, waker.callback()));
        ASSERT_EQ(submission.admit, Admit::kAccepted);
        EXPECT_EQ(read(submission.handle, waker).tokens, FakeRunner::greedy(prompt, 12));
      }
    });
  readers.clear();
  while (!engine.idle()) std::this_thread::yield();
  EXPECT_EQ(engine.counters().finished_length, 120);
  EXPECT_EQ(engine.counters().num_running, 0);
}

TEST(Engine, WithoutALimitTheRestOfTheContextIsUsed) {
  Engine engine(std::make_unique<FakeRunner>(), {});
  for (const int64_t max_tokens : {int64_t{0}, int64_t{1} << 62}) {
    Waker waker;
    auto request = greedy_request({1, 2, 3}, 1, waker.callback());
    request.max_tokens = max_tokens == 0 ? std::nullopt : std::optional(max_tokens);
    auto submission = engine.submit(std::move(request));
    const Answer answer = read(submission.handle, waker);
    EXPECT_EQ(answer.tokens.size(), 61u);
    EXPECT_EQ(answer.finished.reason, FinishReason::kLength);
  }
}

TEST(Engine, RefusesWhatCannotRun) {
  Engine engine(std::make_unique<FakeRunner>(), {});
  EXPECT_THROW(engine.submit(greedy_request({}, 1)), Error);
  EXPECT_THROW(engine.submit(greedy_request({-1}, 1)), Error);
  EXPECT_THROW(engine.submit(greedy_request({int32_t(FakeRunner::kVocab)}, 1)), Error);
  EXPECT_THROW(engine.submit(greedy_request(std::vector<int32_t>(64, 1), 1)), Error);
  EXPECT_THROW(engine.submit(greedy_request({1}, 0)), Error);
  SequenceRequest biased = greedy_request({1}, 1);
  biased.sampling.logit_bias = {{int32_t(FakeRunner::kVocab), 1.f}};
  EXPECT_THROW(engine.submit(std::move(biased)), Error);
  SequenceRequest narrow = greedy_request({1}, 1);
  narrow.sampling.allowed_tokens = {{1, int32_t(FakeRunner::kVocab)}};
  EXPECT_THROW(engine.submit(std::move(narrow)), Error);
  EXPECT_TRUE(engine.idle());
}

// Holds the engine thread before its first layer until released.
struct Gate {
  std::latch reached{1};
  std::latch open{1};
  bool passed = false;
  std::function<void(const std::string&)> hook() {
    return [this](const std::string&) {
      if (std::exchange(passed, true)) return;
      reached.count_down();
      open.wait();
    };
  }
};

TEST(Engine, AFullQueueSaysSoAndACancelledRequestGivesItsPlaceBack) {
  Gate gate;
  auto runner = std::make_unique<FakeRunner>();
  runner->before = gate.hook();
  Engine engine(std::move(runner), {.max_num_seqs = 1, .max_queued_seqs = 2});
  auto running = engine.submit(greedy_request({1}, 5));
  gate.reached.wait();
  auto first = engine.submit(greedy_request({2}, 5));
  auto second = engine.submit(greedy_request({3}, 5));
  EXPECT_EQ(engine.submit(greedy_request({4}, 5)).admit, Admit::kQueueFull);
  EXPECT_EQ(engine.counters().num_waiting, 2);
  engine.cancel(first.handle.sequence_id());
  engine.cancel(987654321);  // unknown: ignored
  second.handle = {};        // dropped: cancelled
  gate.open.count_down();
  while (!engine.idle()) std::this_thread::yield();
  EXPECT_EQ(engine.counters().finished_cancelled, 2);
  EXPECT_EQ(engine.counters().finished_length, 1);
  EXPECT_EQ(engine.submit(greedy_request({4}, 5)).admit, Admit::kAccepted);
}

TEST(Engine, AGroupIsTakenWholeOrNotAtAll) {
  auto runner = std::make_unique<FakeRunner>();
  std::latch let_go(1);
  runner->before = [&](const std::string&) { let_go.wait(); };
  Engine engine(std::move(runner), {.max_num_seqs = 2, .max_queued_seqs = 2});
  Waker waker;
  const auto group = [&](int size) {
    std::vector<SequenceRequest> requests;
    for (int i = 0; i < size; ++i) requests.push_back(greedy_request({1}, 3, waker.callback()));
    return requests;
  };
  auto two = engine.submit_together(group(2));
  EXPECT_EQ(two.admit, Admit::kAccepted);
  EXPECT_EQ(engine.submit_together(group(3)).admit, Admit::kQueueFull);
  auto others = engine.submit_together(group(2));  // nothing of the three has stayed
  EXPECT_EQ(others.admit, Admit::kAccepted);
  EXPECT_THROW(engine.submit_together(group(5)), Error);
  let_go.count_down();
  for (auto* handles : {&two.handles, &others.handles}) {
    ASSERT_EQ(handles->size(), 2u);
    for (SequenceHandle& handle : *handles)
      EXPECT_EQ(read(handle, waker).tokens, FakeRunner::greedy({1}, 3));
  }
}

TEST(Engine, DrainsToTheEndAndTakesNothingNew) {
  Gate gate;
  auto runner = std::make_unique<FakeRunner>();
  runner->before = gate.hook();
  Engine engine(std::move(runner), {});
  Waker waker;
  auto submission = engine.submit(greedy_request({1}, 5, waker.callback()));
  gate.reached.wait();
  engine.drain();
  EXPECT_EQ(engine.submit(greedy_request({2}, 5)).admit, Admit::kDraining);
  EXPECT_FALSE(engine.idle());
  gate.open.count_down();
  EXPECT_EQ(read(submission.handle, waker).tokens, FakeRunner::greedy({1}, 5));
  EXPECT_EQ(engine.state(), State::kDraining);
}

TEST(Engine, ADeviceErrorFailsEverythingForGood) {
  auto runner = std::make_unique<FakeRunner>();
  std::atomic<int> steps{0};
  runner->before = [&](const std::string& what) {
    if (what[0] == 'd' && ++steps == 3) throw Error(ErrorCode::kDevice, "step 3: device lost");
  };
  std::latch failed{1};
  Engine engine(std::move(runner), {.on_failed = [&](const std::string& why) {
                  EXPECT_EQ(why, "step 3: device lost");
                  failed.count_down();
                }});
  Waker waker;
  auto submission = engine.submit(greedy_request({1}, 50, waker.callback()));
  const Answer answer = read(submission.handle, waker);
  EXPECT_EQ(answer.finished.reason, FinishReason::kError);
  failed.wait();
  EXPECT_EQ(engine.state(), State::kFailed);
  EXPECT_EQ(engine.failure(), "step 3: device lost");
  EXPECT_EQ(engine.submit(greedy_request({1}, 5)).admit, Admit::kFailed);
}

TEST(Engine, StoppingEndsWhatRuns) {
  Gate gate;
  auto runner = std::make_unique<FakeRunner>();
  runner->before = gate.hook();
  auto engine = std::make_unique<Engine>(std::move(runner), EngineOptions{.max_num_seqs = 1});
  auto running = engine->submit(greedy_request({1}, 50));
  auto waiting = engine->submit(greedy_request({2}, 50));
  gate.reached.wait();
  gate.open.count_down();
  engine.reset();
  for (SequenceHandle* handle : {&running.handle, &waiting.handle}) {
    std::optional<FinishedEvent> finished;
    while (auto event = handle->try_pop())
      if (const auto* last = std::get_if<FinishedEvent>(&*event)) finished = *last;
    ASSERT_TRUE(finished);
  }
}

}  // namespace
}  // namespace onecard::engine
