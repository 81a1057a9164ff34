#include "experts/exl3_timing.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "device/cpu/read_rate.h"
#include "device/cpu/topology.h"
#include "tensor/buffer.h"

namespace onecard::experts {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<int, 2> kPrefetchBytes{3072, 0};
constexpr double kFewerThreadsGain = 0.9;
constexpr int kMinRounds = 5, kMaxRounds = 40;
constexpr auto kTimePerThreadCount = std::chrono::milliseconds(40);
constexpr int64_t kReadBytes = int64_t{64} << 20;  // of one pass
constexpr int kReadPasses = 3;

int64_t expert_bytes(const ExpertMatrices& expert) {
  int64_t bytes = 0;
  for (const auto* w : {&expert.gate, &expert.up, &expert.down})
    bytes += w->in_features * w->out_features * w->exl3.bits / 8;
  return bytes;
}

// The tiles of a matrix, as the pieces that lie in one.
void add_pieces(const exl3::MatrixView& w, std::vector<std::span<const std::byte>>& pieces) {
  const int64_t bytes = w.in_features * w.out_features * w.bits / 8;
  const int64_t groups = w.layout == exl3::Layout::kNative ? 1
                         : w.layout == exl3::Layout::kBand ? w.out_features / exl3::kGroupDim
                                                           : w.in_features / exl3::kGroupDim;
  for (int64_t g = 0; g < groups; ++g)
    pieces.emplace_back(w.data + g * w.group_stride_bytes, size_t(bytes / groups));
}

class Timer {
 public:
  Timer(Exl3Experts& engine, const ExpertWeights& weights, cpu::Isa isa)
      : engine_(engine),
        weights_(weights),
        isa_(isa),
        x_(weights.hidden_size),
        out_(weights.hidden_size) {
    std::normal_distribution<float> normal;
    for (float& value : x_.span()) value = normal(rng_);
  }

  /// Seconds of one job on `pool` for each of kPrefetchBytes: lower quartiles, what a job takes
  /// while nobody else wants the cores. The distances take turns.
  std::array<double, kPrefetchBytes.size()> job_seconds(ThreadPool& pool) {
    std::array<std::vector<double>, kPrefetchBytes.size()> seconds;
    run_job(pool);  // memory grows, threads start, kernels are chosen
    const auto end = Clock::now() + kTimePerThreadCount;
    for (int round = 0; round < kMaxRounds && (round < kMinRounds || Clock::now() < end); ++round)
      for (size_t i = 0; i < kPrefetchBytes.size(); ++i) {
        engine_.set_prefetch_bytes(kPrefetchBytes[i]);
        seconds[i].push_back(run_job(pool));
      }
    std::array<double, kPrefetchBytes.size()> quartiles;
    for (size_t i = 0; i < seconds.size(); ++i) {
      const auto quartile = seconds[i].begin() + int64_t(seconds[i].size() / 4);
      std::nth_element(seconds[i].begin(), quartile, seconds[i].end());
      quartiles[i] = *quartile;
    }
    return quartiles;
  }

  double read_bytes_per_second(ThreadPool& pool) {
    double best = 0;
    for (int pass = 0; pass < kReadPasses; ++pass) {
      std::vector<std::span<const std::byte>> pieces;
      int64_t bytes = 0;
      for (size_t i = 0; i < weights_.experts.size() && bytes < kReadBytes; ++i) {
        const ExpertMatrices& expert = random_expert();
        for (const auto* w : {&expert.gate, &expert.up, &expert.down}) add_pieces(w->exl3, pieces);
        bytes += expert_bytes(expert);
      }
      best = std::max(best, cpu::measure_read_rate(pool, pieces, 1));
    }
    return best;
  }

 private:
  const ExpertMatrices& random_expert() {
    return weights_.experts[size_t(rng_() % weights_.experts.size())];
  }

  double run_job(ThreadPool& pool) {
    static constexpr int64_t kRow = 0;
    static constexpr float kWeight = 1;
    std::array<Exl3ExpertRows, ExpertTiming::kExpertsPerJob> work;
    for (Exl3ExpertRows& w : work) {
      const ExpertMatrices& expert = random_expert();
      w = {{expert.gate.exl3, expert.up.exl3, expert.down.exl3}, {&kRow, 1}, {&kWeight, 1}};
    }
    const auto start = Clock::now();
    engine_.forward_add({.isa = isa_, .pool = &pool}, x_.view(1, x_.size()), work,
                        out_.view(1, out_.size()));
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  Exl3Experts& engine_;
  const ExpertWeights& weights_;
  const cpu::Isa isa_;
  std::mt19937_64 rng_{1};
  Buffer<float> x_, out_;
};

}  // namespace

ExpertTiming choose_fastest_exl3(Exl3Experts& engine, const ExpertWeights& weights, cpu::Isa isa,
                                 std::span<const int> thread_counts) {
  require(!weights.experts.empty() && !thread_counts.empty(), ErrorCode::kInvalidArgument,
          "expert timing: neither experts nor thread counts may be empty");
  ExpertTiming timing;
  for (const ExpertMatrices& expert : weights.experts) timing.store_bytes += expert_bytes(expert);
  timing.cache_bytes = cpu::last_level_cache_bytes();
  using Source = ExpertTiming::Source;
  timing.source = timing.store_bytes <= timing.cache_bytes      ? Source::kCache
                  : timing.store_bytes < 4 * timing.cache_bytes ? Source::kMixed
                                                                : Source::kMemory;
  if (timing.source == Source::kCache) thread_counts = thread_counts.first(1);

  Timer timer(engine, weights, isa);
  double best_seconds = 0;
  for (const int num_threads : thread_counts) {
    ThreadPool pool(num_threads);
    const auto seconds = timer.job_seconds(pool);
    const auto fastest = std::min_element(seconds.begin(), seconds.end());
    timing.timed_threads.push_back(num_threads);
    if (best_seconds > 0 && *fastest > best_seconds * kFewerThreadsGain) continue;
    best_seconds = *fastest;
    timing.num_threads = num_threads;
    timing.prefetch_bytes = kPrefetchBytes[size_t(fastest - seconds.begin())];
  }
  engine.set_prefetch_bytes(timing.prefetch_bytes);

  const exl3::MatrixView& gate = weights.experts[0].gate.exl3;
  const ops::Exl3Kernel& kernel =
      ops::exl3_fastest(isa, engine.options().precision, gate.codebook, gate.bits).for_rows(1);
  timing.kernel = kernel.name;
  timing.precision = ops::exl3_precision_name(kernel.precision);
  const double seconds_per_expert = best_seconds / ExpertTiming::kExpertsPerJob;
  timing.us_per_expert = seconds_per_expert * 1e6;
  timing.bytes_per_second =
      double(timing.store_bytes) / double(weights.experts.size()) / seconds_per_expert;
  ThreadPool pool(timing.num_threads);
  timing.read_bytes_per_second = timer.read_bytes_per_second(pool);
  return timing;
}

}  // namespace onecard::experts
