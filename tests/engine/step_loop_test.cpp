#include "engine/step_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/fake_runner.h"

namespace onecard::engine {
namespace {

using test::FakeRunner;
using testing::ElementsAre;
using testing::HasSubstr;

struct Outcome {
  PromptEvent prompt;
  std::vector<int32_t> tokens;
  std::optional<FinishedEvent> finished;
};

// The loop over a fake model, without a thread: a test runs turn by turn.
class StepLoopTest : public testing::Test {
 protected:
  void open(const EngineOptions& options, FakeRunner::Options runner_options = {}) {
    auto runner = std::make_unique<FakeRunner>(runner_options);
    runner_ = runner.get();
    loop_ = std::make_unique<StepLoop>(std::move(runner), options);
  }

  // As Engine::submit() does.
  std::shared_ptr<EventQueue> add(std::vector<int32_t> prompt, int64_t max_tokens,
                                  SequenceRequest request = {}, size_t queue_capacity = 1000) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = ++last_id_;
    request.sampling.temperature = 0;
    request.prompt = std::move(prompt);
    sequence->max_tokens = max_tokens;
    sequence->stop_ids = request.stop_token_ids;
    sequence->sampler = std::make_unique<Sampler>(request.sampling, 1, request.prompt,
                                                  sequence->stop_ids, request.min_tokens);
    sequence->events = std::make_shared<EventQueue>(queue_capacity, nullptr);
    sequence->tokens = request.prompt;
    sequence->num_prompt = int64_t(request.prompt.size());
    sequence->request = std::move(request);
    auto events = sequence->events;
    loop_->add(std::move(sequence));
    return events;
  }

  void run_until_idle() {
    for (int turn = 0; turn < 10000 && !loop_->idle(); ++turn) loop_->run_turn();
    ASSERT_TRUE(loop_->idle());
  }

  static Outcome drain(EventQueue& events) {
    Outcome outcome;
    while (auto event = events.try_pop()) {
      EXPECT_FALSE(outcome.finished) << "an event behind the last";
      if (const auto* token = std::get_if<TokenEvent>(&*event))
        outcome.tokens.push_back(token->token);
      else if (auto* prompt = std::get_if<PromptEvent>(&*event))
        outcome.prompt = std::move(*prompt);
      else
        outcome.finished = std::get<FinishedEvent>(*event);
    }
    return outcome;
  }

  int count(const std::string& what) const {
    return int(std::count(runner_->trace.begin(), runner_->trace.end(), what));
  }

  std::unique_ptr<StepLoop> loop_;
  FakeRunner* runner_ = nullptr;
  uint64_t last_id_ = 0;
};

std::vector<int32_t> iota(int count, int first) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((first + i) % int(FakeRunner::kVocab));
  return tokens;
}

TEST_F(StepLoopTest, AnswersAPromptReadInChunks) {
  open({.prefill_chunk_tokens = 4});
  const auto prompt = iota(11, 3);
  const auto events = add(prompt, 6);
  run_until_idle();
  const Outcome outcome = drain(*events);
  EXPECT_EQ(outcome.tokens, FakeRunner::greedy(prompt, 6));
  ASSERT_TRUE(outcome.finished);
  EXPECT_EQ(outcome.finished->reason, FinishReason::kLength);
  EXPECT_EQ(outcome.finished->prompt_tokens, 11);
  EXPECT_EQ(outcome.finished->completion_tokens, 6);
  EXPECT_EQ(count("p0"), 3 * FakeRunner::kLayers);  // 4 + 4 + 2 tokens; the last one is a step's
  EXPECT_EQ(count("d0"), 6);
  EXPECT_EQ(loop_->counters().num_prefill_chunks, 3);
  EXPECT_EQ(loop_->counters().generation_tokens, 6);
}

// More sequences than slots, of different lengths: each answers as it would alone.
TEST_F(StepLoopTest, SequencesTogetherEqualTheirSoloTokens) {
  open({.max_num_seqs = 3, .prefill_chunk_tokens = 3}, {.num_slots = 3});
  std::vector<std::shared_ptr<EventQueue>> events;
  for (int i = 0; i < 7; ++i) events.push_back(add(iota(1 + 5 * i, i), 4 + i));
  run_until_idle();
  for (int i = 0; i < 7; ++i)
    EXPECT_EQ(drain(*events[size_t(i)]).tokens, FakeRunner::greedy(iota(1 + 5 * i, i), 4 + i))
        << "sequence " << i;
}

// A long prompt must not hold up a stream: a decode step comes between any two layers.
TEST_F(StepLoopTest, DecodesBetweenTheLayersOfAPrefill) {
  open({.prefill_chunk_tokens = 8});
  add({1}, 50);
  while (count("d0") == 0) loop_->run_turn();
  add(iota(40, 0), 1);
  run_until_idle();
  int layers_since_step = 0;
  for (const std::string& what : runner_->trace) {
    if (what == "p1") {
      EXPECT_LE(++layers_since_step, 1);
    }
    if (what[0] == 'd') layers_since_step = 0;
  }
  EXPECT_EQ(count("p1"), 5 * FakeRunner::kLayers);
}

// A short prompt behind a long one waits for a chunk of it, not for all.
TEST_F(StepLoopTest, ChunksOfSeveralPromptsTakeTurns) {
  open({.prefill_chunk_tokens = 4});
  add(iota(40, 0), 1);
  loop_->run_turn();
  const auto short_events = add({7, 8}, 1);
  int turns = 0;
  while (!drain(*short_events).finished) {
    ASSERT_LT(++turns, 2 * FakeRunner::kLayers + 1);
    loop_->run_turn();
  }
  EXPECT_LT(count("p0"), 10 * FakeRunner::kLayers);
}

// Nor do streams hold up a prompt: a layer comes between any two steps.
TEST_F(StepLoopTest, ReadsALayerBetweenTheStepsOfOthers) {
  open({.prefill_chunk_tokens = 8}, {.context_length = 1000});
  for (int i = 0; i < 3; ++i) add({i}, 200);
  while (loop_->counters().num_steps < 3) loop_->run_turn();
  const auto events = add(iota(33, 0), 1);
  const int64_t steps = loop_->counters().num_steps;
  while (!drain(*events).finished) loop_->run_turn();
  EXPECT_EQ(loop_->counters().num_steps - steps, 4 * FakeRunner::kLayers);
}

TEST_F(StepLoopTest, CountsIterationsByTheirTokens) {
  open({.prefill_chunk_tokens = 20});
  add(iota(34, 0), 3);  // 33 to read: a chunk of 20, one of 13; three steps of one row
  run_until_idle();
  add({1}, 2);  // nothing to read; the second begins a turn later: steps of one, two, one row
  add({2}, 2);
  run_until_idle();
  const Counters counters = loop_->counters();
  int64_t iterations = 0;
  for (const int64_t count : counters.iterations_by_tokens) iterations += count;
  EXPECT_EQ(kIterationTokenBounds[0], 1);
  EXPECT_EQ(counters.iterations_by_tokens[0], 5);
  EXPECT_EQ(counters.iterations_by_tokens[1], 1);  // up to 8
  EXPECT_EQ(counters.iterations_by_tokens[2], 1);  // up to 16
  EXPECT_EQ(counters.iterations_by_tokens[3], 1);  // up to 32
  EXPECT_EQ(iterations, counters.num_steps + counters.num_prefill_chunks);
  EXPECT_EQ(counters.tokens_computed, 33 + 3 + 4);
}

TEST_F(StepLoopTest, EqualPromptsAreReadOnce) {
  open({.prefill_chunk_tokens = 8});
  const auto prompt = iota(30, 0);
  std::vector<std::shared_ptr<EventQueue>> equal;
  for (int i = 0; i < 3; ++i) equal.push_back(add(prompt, 4));
  SequenceRequest salted;
  salted.cache_salt = "other";
  const auto apart = add(prompt, 4, std::move(salted));
  run_until_idle();
  // 29 tokens read by the first of them, 29 by the one of another salt; four steps each.
  EXPECT_EQ(runner_->num_rows_computed, 2 * 29 + 4 * 4);
  for (size_t i = 0; i < equal.size(); ++i) {
    const Outcome outcome = drain(*equal[i]);
    EXPECT_EQ(outcome.tokens, FakeRunner::greedy(prompt, 4));
    EXPECT_EQ(outcome.finished->cached_tokens, i == 0 ? 0 : 29);
  }
  EXPECT_EQ(drain(*apart).finished->cached_tokens, 0);
}

TEST_F(StepLoopTest, WhoeverWaitsForAnEqualPromptGoesOnWhenItIsCancelled) {
  open({.prefill_chunk_tokens = 8});
  const auto prompt = iota(30, 0);
  const auto first = add(prompt, 4);
  const auto second = add(prompt, 4);
  loop_->run_turn();
  first->request_end(EndRequest::kCancel);
  run_until_idle();
  EXPECT_EQ(drain(*second).tokens, FakeRunner::greedy(prompt, 4));
}

// The fake's logits are 5 for the next token and -((7919 i + next) mod 13) for any other i.
TEST_F(StepLoopTest, PromptLogprobsAreOfEveryTokenBehindTheFirst) {
  open({.prefill_chunk_tokens = 100}, {.context_length = 200});
  const auto prompt = iota(90, 3);
  add(prompt, 1);
  run_until_idle();
  const int64_t rows = runner_->num_rows_computed;
  SequenceRequest request;
  request.prompt_logprobs = 2;
  const auto events = add(prompt, 3, std::move(request));
  run_until_idle();
  const Outcome outcome = drain(*events);
  EXPECT_EQ(outcome.tokens, FakeRunner::greedy(prompt, 3));
  EXPECT_EQ(outcome.finished->cached_tokens, 0);  // what is cached has no logits
  EXPECT_EQ(runner_->num_rows_computed - rows, 90 + 2);
  ASSERT_EQ(outcome.prompt.tokens.size(), prompt.size() - 1);
  for (size_t i = 1; i < prompt.size(); ++i) {
    const int32_t next = FakeRunner::next({prompt.begin(), prompt.begin() + long(i)});
    const auto logit = [&](int32_t id) {
      return id == next ? 5.0 : -double((int64_t{id} * 7919 + next) % 13);
    };
    double sum = 0;
    int64_t rank = 1;
    for (int32_t id = 0; id < FakeRunner::kVocab; ++id) {
      sum += std::exp(logit(id));
      rank += logit(id) > logit(prompt[i]);
    }
    const TokenEvent& got = outcome.prompt.tokens[i - 1];
    EXPECT_EQ(got.token, prompt[i]);
    EXPECT_NEAR(got.logprob, logit(prompt[i]) - std::log(sum), 1e-5);
    EXPECT_EQ(got.rank, rank);
    ASSERT_EQ(got.top.size(), 2u);
    EXPECT_EQ(got.top[0].token, next);
  }
}

TEST_F(StepLoopTest, CancelEndsAPrefillBeforeItsNextLayer) {
  open({.prefill_chunk_tokens = 32});
  const auto prompt = iota(30, 0);
  const auto events = add(prompt, 5);
  loop_->run_turn();
  loop_->run_turn();
  events->request_end(EndRequest::kCancel);
  loop_->run_turn();
  EXPECT_EQ(count("p0"), 2);
  EXPECT_THAT(runner_->trace, testing::Contains("r0"));
  EXPECT_EQ(drain(*events).finished->reason, FinishReason::kCancelled);
  EXPECT_TRUE(loop_->idle());
  EXPECT_EQ(loop_->counters().finished_cancelled, 1);
  EXPECT_EQ(loop_->counters().kv_tokens_used, 0);
  // The slot serves the next one, and nothing of the old prompt is left in it.
  const auto next = add(prompt, 5);
  run_until_idle();
  EXPECT_EQ(drain(*next).tokens, FakeRunner::greedy(prompt, 5));
}

TEST_F(StepLoopTest, CancelEndsADecodeBeforeItsNextStepAndTouchesNobodyElse) {
  open({.max_num_seqs = 1});
  const auto a = add({5, 6}, 20);
  const auto b = add({9}, 20);
  while (count("d0") < 3) loop_->run_turn();
  b->request_end(EndRequest::kCancel);  // still waiting: leaves the queue
  loop_->run_turn();
  EXPECT_EQ(drain(*b).finished->reason, FinishReason::kCancelled);
  EXPECT_EQ(loop_->counters().num_waiting, 0);
  run_until_idle();
  const Outcome outcome = drain(*a);
  EXPECT_EQ(outcome.tokens, FakeRunner::greedy({5, 6}, 20));
  EXPECT_EQ(outcome.finished->reason, FinishReason::kLength);

  const auto c = add({4}, 20);
  while (count("d0") < 25) loop_->run_turn();
  const int steps = count("d0");
  c->request_end(EndRequest::kCancel);
  loop_->run_turn();
  EXPECT_EQ(count("d0"), steps);
  EXPECT_TRUE(loop_->idle());
}

TEST_F(StepLoopTest, AReaderThatHasEnoughCountsAsStop) {
  open({});
  const auto events = add({5}, 20);
  while (count("d0") < 2) loop_->run_turn();
  events->request_end(EndRequest::kStop);
  events->request_end(EndRequest::kCancel);  // the handle is dropped: the first wish counts
  loop_->run_turn();
  EXPECT_EQ(drain(*events).finished->reason, FinishReason::kStop);
  EXPECT_EQ(loop_->counters().finished_stop, 1);
}

TEST_F(StepLoopTest, ASlowReaderLosesItsSequenceAlone) {
  open({});
  const auto slow = add({5}, 30, {}, /*queue_capacity=*/4);
  const auto other = add({6}, 12);
  run_until_idle();
  const Outcome outcome = drain(*slow);
  EXPECT_EQ(outcome.tokens.size(), 4u);
  ASSERT_TRUE(outcome.finished);  // the last event finds room in a full queue
  EXPECT_EQ(outcome.finished->reason, FinishReason::kSlowReader);
  EXPECT_FALSE(outcome.finished->message.empty());
  EXPECT_EQ(drain(*other).tokens, FakeRunner::greedy({6}, 12));
}

TEST_F(StepLoopTest, StopIdsEndWithoutAnEvent) {
  open({});
  const auto answer = FakeRunner::greedy({5}, 8);
  SequenceRequest request;
  request.stop_token_ids = {answer[4]};
  const auto events = add({5}, 30, std::move(request));
  run_until_idle();
  const Outcome outcome = drain(*events);
  const auto first = size_t(std::find(answer.begin(), answer.end(), answer[4]) - answer.begin());
  EXPECT_EQ(outcome.tokens, std::vector<int32_t>(answer.begin(), answer.begin() + long(first)));
  EXPECT_EQ(outcome.finished->reason, FinishReason::kStop);
  EXPECT_EQ(outcome.finished->stop_token_id, answer[4]);
}

TEST_F(StepLoopTest, MinTokensHoldsStopIdsBack) {
  open({});
  SequenceRequest request;
  request.stop_token_ids = {FakeRunner::next({5})};
  request.min_tokens = 3;
  const auto events = add({5}, 30, std::move(request));
  run_until_idle();
  EXPECT_GE(drain(*events).tokens.size(), 3u);
}

TEST_F(StepLoopTest, ADeadlineEndsTheSequence) {
  open({});
  SequenceRequest request;
  request.deadline = Clock::now();
  const auto events = add({5}, 30, std::move(request));
  run_until_idle();
  EXPECT_EQ(drain(*events).finished->reason, FinishReason::kDeadline);
  EXPECT_TRUE(runner_->trace.empty());
}

TEST_F(StepLoopTest, ADataErrorEndsTheSequencesThatNeededIt) {
  open({.prefill_chunk_tokens = 8});
  const auto decoding = add({5}, 20);
  while (count("d0") == 0) loop_->run_turn();
  runner_->before = [](const std::string& what) {
    if (what == "p1") throw Error(ErrorCode::kIo, "reading expert 7: short read");
  };
  const auto reading = add({6, 7}, 20);
  run_until_idle();
  const Outcome failed = drain(*reading);
  EXPECT_EQ(failed.finished->reason, FinishReason::kError);
  EXPECT_THAT(failed.finished->message, HasSubstr("expert 7"));
  EXPECT_EQ(drain(*decoding).tokens, FakeRunner::greedy({5}, 20));
  EXPECT_EQ(loop_->counters().finished_error, 1);
}

TEST_F(StepLoopTest, ADeviceErrorIsThrown) {
  open({});
  const auto events = add({5}, 20);
  runner_->before = [](const std::string&) { throw Error(ErrorCode::kDevice, "lost"); };
  EXPECT_THROW(run_until_idle(), Error);
  loop_->finish_all(FinishReason::kError, "the engine has failed");
  EXPECT_EQ(drain(*events).finished->reason, FinishReason::kError);
}

class OnlyEven final : public TokenConstraint {
 public:
  explicit OnlyEven(int num_tokens) : left_(num_tokens) {}
  bool restrict_next(std::span<uint64_t> allowed) override {
    for (uint64_t& word : allowed) word &= left_ > 0 ? 0x5555555555555555 : 0;
    return true;
  }
  void accept(int32_t token) override {
    EXPECT_EQ(token % 2, 0);
    --left_;
  }

 private:
  int left_;
};

TEST_F(StepLoopTest, AConstraintDecidesWhatMayFollowAndWhenTheEndIsReached) {
  open({});
  SequenceRequest request;
  request.constraint = std::make_unique<OnlyEven>(5);
  const auto events = add({5}, 30, std::move(request));
  run_until_idle();
  const Outcome outcome = drain(*events);
  EXPECT_EQ(outcome.tokens.size(), 5u);
  EXPECT_EQ(outcome.finished->reason, FinishReason::kStop);
}

// A grammar that can read its text in too many ways, for instance.
class GivesUp final : public TokenConstraint {
 public:
  bool restrict_next(std::span<uint64_t>) override {
    if (++num_tokens_ > 3) throw Error(ErrorCode::kResourceExhausted, "too many ways");
    return false;
  }
  void accept(int32_t) override {}

 private:
  int num_tokens_ = 0;
};

TEST_F(StepLoopTest, AConstraintThatGivesUpEndsItsSequenceAlone) {
  open({.max_num_seqs = 2});
  SequenceRequest request;
  request.constraint = std::make_unique<GivesUp>();
  const auto ends = add({5}, 30, std::move(request));
  const auto goes_on = add({7}, 30);
  run_until_idle();
  const Outcome outcome = drain(*ends);
  EXPECT_EQ(outcome.tokens.size(), 3u);
  EXPECT_EQ(outcome.finished->reason, FinishReason::kError);
  EXPECT_EQ(outcome.finished->message, "too many ways");
  EXPECT_EQ(drain(*goes_on).tokens, FakeRunner::greedy({7}, 30));
}

// A conversation: each prompt is the one before, its answer, and something new.
TEST_F(StepLoopTest, APromptThatGoesOnComputesWhatIsNewAlone) {
  open({.prefill_chunk_tokens = 8}, {.context_length = 1000});
  std::vector<int32_t> prompt = iota(30, 0);
  int64_t cached_before = -1;
  for (int turn = 0; turn < 5; ++turn) {
    const int64_t rows_before = runner_->num_rows_computed;
    const auto events = add(prompt, 6);
    const auto other = add(iota(20, 50 + turn), 3);  // a conversation in between
    run_until_idle();
    const int64_t other_rows = 20 + 2;  // shares nothing with anybody
    drain(*other);
    const Outcome outcome = drain(*events);
    EXPECT_EQ(outcome.tokens, FakeRunner::greedy(prompt, 6));
    const int64_t cached = outcome.finished->cached_tokens;
    if (turn > 0) {
      EXPECT_GT(cached, cached_before);
      EXPECT_EQ(cached, int64_t(prompt.size()) - 10 - 1);  // all but the answer's end and the new
    }
    cached_before = cached;
    // The rows computed are the prompt's, without those restored, and the answer's but its last.
    EXPECT_EQ(runner_->num_rows_computed - rows_before,
              int64_t(prompt.size()) - cached + 5 + other_rows);
    prompt.insert(prompt.end(), outcome.tokens.begin(), outcome.tokens.end());
    for (int i = 0; i < 10; ++i) prompt.push_back(90 - turn - i);
  }
}

TEST_F(StepLoopTest, ARepeatedPromptComputesItsLastTokenAlone) {
  open({.prefill_chunk_tokens = 8});
  const auto prompt = iota(30, 0);
  const auto first = add(prompt, 1);
  run_until_idle();
  EXPECT_EQ(drain(*first).finished->cached_tokens, 0);
  const int64_t rows = runner_->num_rows_computed;
  const auto second = add(prompt, 1);
  run_until_idle();
  const Outcome outcome = drain(*second);
  EXPECT_EQ(outcome.finished->cached_tokens, 29);
  EXPECT_EQ(outcome.tokens, FakeRunner::greedy(prompt, 1));
  EXPECT_EQ(runner_->num_rows_computed - rows, 1);
  EXPECT_EQ(loop_->counters().prefix_cache_queries, 58);
  EXPECT_EQ(loop_->counters().prefix_cache_hits, 29);
  EXPECT_EQ(loop_->counters().prompt_tokens_cached, 29);
}

TEST_F(StepLoopTest, AnotherSaltSharesNothing) {
  open({});
  const auto prompt = iota(30, 0);
  for (const char* salt : {"", "a", "b"}) {
    SequenceRequest request;
    request.cache_salt = salt;
    const auto events = add(prompt, 1, std::move(request));
    run_until_idle();
    EXPECT_EQ(drain(*events).finished->cached_tokens, 0);
  }
}

TEST_F(StepLoopTest, OptionsThatDoNotFitTheModelAreRefused) {
  EXPECT_THROW(open({.max_num_seqs = 5}), Error);
  EXPECT_THROW(open({.max_num_seqs = 0}), Error);
  EXPECT_THROW(open({.prefill_chunk_tokens = 0}), Error);
}

}  // namespace
}  // namespace onecard::engine
