// Prefill and decode of the demo model, end to end but for tokens and sockets: a fixed token
// sequence through the same passes and steps as in the server. The first benchmark compares the
// fast kernels' predictions with the plain path's; scripts/bench_cpu keeps no figure if they
// differ.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "device/cpu/isa.h"
#include "engine/decode_step.h"
#include "engine/divergence.h"
#include "engine/prefill_pass.h"
#include "experts/cpu_experts.h"
#include "io/checkpoint.h"
#include "model/model.h"
#include "model/precision_record.h"

namespace onecard::engine {
namespace {

constexpr int64_t kChunkTokens = 512;  // what the server reads at once
constexpr int64_t kCapacity = 4096;
constexpr int64_t kCheckTokens = 96;
constexpr double kMaxDivergence = 1e-4;  // nats, mean over the checked positions

const std::string kDemoDir = ONECARD_SOURCE_DIR "/models/demo";

// As a server would: the fastest arithmetic that has been found harmless for these weights.
const model::Arithmetic& arithmetic() {
  static const model::Arithmetic chosen = model::choose_arithmetic(
      model::read_precision_record(io::Checkpoint::open(kDemoDir)), std::nullopt);
  return chosen;
}

struct Demo {
  experts::CpuExperts* experts = nullptr;  // the model's
  std::unique_ptr<model::Model> model;
};

Demo& loaded() {
  static Demo demo;
  if (demo.model == nullptr)
    demo.model =
        model::Model::load(io::Checkpoint::open(kDemoDir), model::load_model_config(kDemoDir),
                           {.make_experts = [](experts::ExpertWeights weights) {
                             auto made = std::make_unique<experts::CpuExperts>(
                                 std::move(weights), arithmetic().experts);
                             demo.experts = made.get();
                             return made;
                           }});
  return demo;
}
const model::Model& demo() { return *loaded().model; }

Exec fast_exec(ThreadPool* pool = nullptr) {
  return {.isa = cpu::detect_isa(), .pool = pool, .dense_int16 = arithmetic().dense_int16};
}

// Ids above the control tokens, of any kind: the work does not depend on what they say.
std::vector<int32_t> token_ids(int64_t count) {
  std::vector<int32_t> ids;
  uint32_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(int32_t(256 + (state >> 8) % 4096));
  }
  return ids;
}

class Sequence {
 public:
  Sequence()
      : state_(demo().config(), {.capacity_tokens = kCapacity}),
        workspace_(demo().config(),
                   PrefillPass::workspace_rows(demo().config(), PrefillMode::kExact, kChunkTokens),
                   kCapacity),
        tail_(demo().config(), PrefillMode::kExact),
        full_tail_(demo().config(), PrefillMode::kFull),
        logits_(kCheckTokens * demo().vocab_size()) {}

  model::SequenceState& state() { return state_; }
  void restart() { state_.clear(); }

  void prefill(const Exec& exec, std::span<const int32_t> tokens) {
    for (size_t begin = 0; begin < tokens.size(); begin += size_t(kChunkTokens)) {
      const auto chunk =
          tokens.subspan(begin, std::min(tokens.size() - begin, size_t(kChunkTokens)));
      const bool last = begin + chunk.size() == tokens.size();
      PrefillPass pass(exec, demo(), workspace_, state_, tail_, chunk,
                       {.mode = PrefillMode::kExact, .last = last},
                       logits_.view(last ? 1 : 0, demo().vocab_size()));
      while (!pass.run_layer()) {
      }
    }
  }

  /// The logits of every token, for the comparison.
  std::vector<float> all_logits(const Exec& exec, std::span<const int32_t> tokens) {
    restart();
    const View<float> rows = logits_.view(int64_t(tokens.size()), demo().vocab_size());
    PrefillPass pass(exec, demo(), workspace_, state_, full_tail_, tokens,
                     {.mode = PrefillMode::kFull, .last = true, .all_logits = true}, rows);
    while (!pass.run_layer()) {
    }
    restart();
    return {rows.data, rows.data + rows.rows * rows.cols};
  }

 private:
  model::SequenceState state_;
  model::Workspace workspace_;
  EncoderTail tail_, full_tail_;
  Buffer<float> logits_;
};

double mean_divergence(const std::vector<float>& p, const std::vector<float>& q) {
  const auto vocab = size_t(demo().vocab_size());
  double total = 0;
  for (size_t row = 0; row < p.size(); row += vocab)
    total += divergence({p.data() + row, vocab}, {q.data() + row, vocab});
  return total / double(p.size() / vocab);
}

// A benchmark of its own, so that a profile of the others shows nothing of the plain path. Ids
// without a meaning say whether the kernels are right; what rounding does to answers is recorded
// with the model (onecard precision), and this is exact.
void BM_DemoAgreesWithPlain(benchmark::State& state) {
  Sequence sequence;
  const std::vector<int32_t> ids = token_ids(kCheckTokens);
  const auto plain = sequence.all_logits({.isa = cpu::Isa::kPlain}, ids);
  loaded().experts->set_precision(ops::Exl3Precision::kF32);
  double divergence = 0;
  for (auto _ : state)
    divergence = mean_divergence(plain, sequence.all_logits({.isa = cpu::detect_isa()}, ids));
  loaded().experts->set_precision(arithmetic().experts);
  state.counters["kl_to_plain"] = divergence;
  if (divergence > kMaxDivergence) state.SkipWithError("predictions differ from the plain path's");
}
BENCHMARK(BM_DemoAgreesWithPlain)->Iterations(1);

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

void report(benchmark::State& state, int64_t tokens) {
  using Counter = benchmark::Counter;
  state.counters["tok_per_s"] = Counter(double(tokens), Counter::kIsIterationInvariantRate);
}

void BM_DemoPrefill(benchmark::State& state) {
  ThreadPool pool(int(state.range(1)));
  const Exec exec = fast_exec(&pool);
  Sequence sequence;
  const std::vector<int32_t> ids = token_ids(state.range(0));
  for (auto _ : state) {
    sequence.restart();
    sequence.prefill(exec, ids);
  }
  report(state, state.range(0));
}
BENCHMARK(BM_DemoPrefill)
    ->ArgNames({"tokens", "threads"})
    ->ArgsProduct({{512, 2048}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void BM_DemoDecode(benchmark::State& state) {
  ThreadPool pool(int(state.range(1)));
  const Exec exec = fast_exec(&pool);
  Sequence sequence;
  const std::vector<int32_t> ids = token_ids(state.range(0));
  DecodeStep step(demo(), 1, kCapacity);
  Buffer<float> logits(demo().vocab_size());
  const auto start = [&] {
    sequence.restart();
    sequence.prefill(exec, ids);
  };
  start();
  int32_t token = 300;
  for (auto _ : state) {
    if (sequence.state().room_tokens() == 0) {
      state.PauseTiming();
      start();
      state.ResumeTiming();
    }
    const std::vector<DecodeStep::Row> rows{{&sequence.state(), token}};
    step.run(exec, rows, logits.view(1, demo().vocab_size()));
    token = 256 + (token * 7 + 1) % 4096;
  }
  report(state, 1);
}
BENCHMARK(BM_DemoDecode)
    ->ArgNames({"context", "threads"})
    ->ArgsProduct({{512, 2048}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// A step of several sequences, each at its own place behind a prompt of 512 tokens. One thread, in
// processor time: what a step costs, and not how busy the machine is.
void BM_DemoStep(benchmark::State& state) {
  const int64_t num_sequences = state.range(0);
  const Exec exec = fast_exec();
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<DecodeStep::Row> rows;
  const std::vector<int32_t> ids = token_ids(512 + num_sequences);
  const auto start = [&] {
    rows.clear();
    for (int64_t i = 0; i < num_sequences; ++i) {
      if (int64_t(sequences.size()) <= i) sequences.push_back(std::make_unique<Sequence>());
      sequences[size_t(i)]->restart();
      sequences[size_t(i)]->prefill(exec, std::span(ids).subspan(size_t(i), 512));
      rows.push_back({&sequences[size_t(i)]->state(), int32_t(300 + 7 * i)});
    }
  };
  start();
  DecodeStep step(demo(), num_sequences, kCapacity);
  Buffer<float> logits(num_sequences * demo().vocab_size());
  std::vector<double> times;
  for (auto _ : state) {
    if (sequences[0]->state().room_tokens() == 0) start();
    const double begin = thread_seconds();
    step.run(exec, rows, logits.view(num_sequences, demo().vocab_size()));
    times.push_back(thread_seconds() - begin);
    state.SetIterationTime(times.back());
    for (DecodeStep::Row& row : rows) row.token = 256 + (row.token * 7 + 1) % 4096;
  }
  // The fastest tenth: a neighbour on the same core can double the others.
  std::nth_element(times.begin(), times.begin() + int64_t(times.size() / 10), times.end());
  state.counters["step_cpu_ms"] = times[times.size() / 10] * 1e3;
}
BENCHMARK(BM_DemoStep)
    ->ArgName("sequences")
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace onecard::engine
