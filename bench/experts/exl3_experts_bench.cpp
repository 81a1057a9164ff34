// Whole experts of the released geometry (hidden 5120, intermediate 2304, K = 3: 13.3 MB) picked at
// random from memory far larger than any cache. Times are beside two bounds of the same run: the
// bytes over the rate at which the same threads read memory, and the arithmetic at the rate of the
// chosen kernel on the same threads at once, from their second-level caches. One expert is compared
// with its f64 reference before anything is timed.
#include <benchmark/benchmark.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/spin_barrier.h"
#include "base/thread_pool.h"
#include "device/cpu/isa.h"
#include "device/cpu/read_rate.h"
#include "device/cpu/topology.h"
#include "experts/cpu_experts.h"
#include "experts/exl3_experts.h"
#include "quant/exl3/layout.h"
#include "quant/exl3/tile.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace onecard::experts {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kHidden = 5120, kInner = 2304;
constexpr int kBits = 3;
constexpr int64_t kStoreBytes = int64_t{3} << 30;
constexpr double kWeights = 3.0 * kHidden * kInner;
constexpr double kTileBytes = kWeights / 256 * 32 * kBits;

double ns_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

class Store {
 public:
  static Store& get() {
    static Store store;
    return store;
  }

  int64_t size() const { return num_experts_; }
  exl3::ExpertView expert(int64_t idx) const {
    return layout_.view(data_ + idx * layout_.record_bytes(), exl3::Codebook::kMul1);
  }
  std::span<const std::byte> bytes() const { return {data_, size_t(kStoreBytes)}; }

 private:
  Store()
      : layout_(kHidden, kInner, kBits, kBits, kBits),
        num_experts_(kStoreBytes / layout_.record_bytes() - 1) {
    void* memory = mmap(nullptr, size_t(kStoreBytes) + (2u << 20), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    data_ = reinterpret_cast<std::byte*>((uintptr_t(memory) + (2u << 20) - 1) &
                                         ~uintptr_t((2u << 20) - 1));
    madvise(data_, size_t(kStoreBytes), MADV_HUGEPAGE);
    ThreadPool pool(int(onecard::cpu::allowed_cores().size()));
    constexpr int64_t kPiece = 16 << 20;
    pool.run(kStoreBytes / kPiece, [&](int64_t piece, int) {
      std::mt19937_64 rng(uint64_t(piece) + 1);
      auto* const words = reinterpret_cast<uint64_t*>(data_ + piece * kPiece);
      for (int64_t i = 0; i < kPiece / 8; ++i) words[i] = rng();
    });
    for (int64_t e = 0; e < num_experts_; ++e) {
      auto* const scales =
          reinterpret_cast<uint16_t*>(data_ + e * layout_.record_bytes() + layout_.scales_offset());
      for (int64_t i = 0; i < layout_.scales_bytes() / 2; ++i)
        scales[i] = f32_to_f16((i * 7919 % 13 < 6 ? -1.0f : 1.0f) * 0.11f);
    }
  }

  exl3::ExpertLayout layout_;
  int64_t num_experts_;
  std::byte* data_ = nullptr;
};

// Relative RMS error of one expert against f64, with the codebook's own fp16 values.
double error_of_one_expert(Exl3Experts& engine, const Exec& exec) {
  const exl3::ExpertView expert = Store::get().expert(0);
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(kHidden), out(kHidden, 0.0f);
  for (float& v : x) v = normal(rng);
  for (int i = 0; i < 8; ++i) x[size_t(600 * i + 17)] = i % 2 ? 25.0f : -25.0f;
  const std::vector<int64_t> rows{0};
  const std::vector<float> weights{0.7f};
  const Exl3ExpertRows work{expert, rows, weights};
  engine.forward_add(exec, {x.data(), 1, kHidden}, {&work, 1}, {out.data(), 1, kHidden});

  const auto hadamard = [](std::vector<double>& v) {
    for (size_t block = 0; block < v.size(); block += 128)
      for (size_t h = 1; h < 128; h *= 2)
        for (size_t i = 0; i < 128; ++i)
          if ((i & h) == 0) {
            double &a = v[block + i], &b = v[block + i + h];
            const double sum = (a + b) * std::sqrt(0.5), difference = (a - b) * std::sqrt(0.5);
            a = sum;
            b = difference;
          }
  };
  const auto product = [&](const exl3::MatrixView& w, std::vector<double> v) {
    for (size_t i = 0; i < v.size(); ++i) v[i] *= double(f16_to_f32(w.suh[i]));
    hadamard(v);
    std::vector<double> y(size_t(w.out_features), 0.0);
    std::vector<float> tile(256);
    for (int64_t a = 0; a < w.in_features / 16; ++a)
      for (int64_t b = 0; b < w.out_features / 16; ++b) {
        exl3::decode_tile(w.tile(a, b), w.bits, w.codebook,
                          std::span<float, 256>(tile.data(), 256));
        for (int64_t k = 0; k < 16; ++k)
          for (int64_t c = 0; c < 16; ++c)
            y[size_t(16 * b + c)] += v[size_t(16 * a + k)] * double(tile[size_t(16 * k + c)]);
      }
    hadamard(y);
    for (size_t i = 0; i < y.size(); ++i) y[i] *= double(f16_to_f32(w.svh[i]));
    return y;
  };
  const std::vector<double> in(x.begin(), x.end());
  std::vector<double> a = product(expert.gate, in);
  const std::vector<double> b = product(expert.up, in);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = std::min(a[i], 10.0);
    a[i] = double(weights[0]) * (a[i] / (1 + std::exp(-a[i]))) * std::clamp(b[i], -10.0, 10.0);
  }
  const std::vector<double> want = product(expert.down, a);
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (out[i] - want[i]) * (out[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(error / size);
}

// The chosen kernel on all threads at once, weights in their second-level caches: nanoseconds a
// weight of all together. Threads that share a core share its multipliers, so that one thread's
// rate would promise too much.
double cached_ns_per_weight(ThreadPool& pool, onecard::cpu::Isa isa, ops::Exl3Precision precision,
                            int rows) {
  const ops::Exl3Kernel& kernel =
      ops::exl3_fastest(isa, precision, exl3::Codebook::kMul1, kBits).for_rows(rows);
  constexpr int kStrips = 256, kPasses = 40, kWindows = 8;
  const int num_threads = pool.num_threads();
  const std::byte* const tiles = Store::get().bytes().data();
  const Buffer<std::byte> activations(rows * kernel.activation_bytes);
  const std::vector<float> scales(size_t(rows), 1.0f);
  double best = 1e30;
  SpinBarrier barrier;
  for (int window = 0; window < kWindows; ++window) {
    barrier.reset(num_threads);
    std::vector<Clock::time_point> starts(static_cast<size_t>(num_threads)), ends = starts;
    pool.run(num_threads, [&](int64_t task, int) {
      std::vector<float> sums(size_t(rows) * kStrips * 16);
      barrier.wait();
      starts[size_t(task)] = Clock::now();
      for (int pass = 0; pass < kPasses; ++pass)
        kernel.multiply({.tiles = tiles,
                         .tile_stride_bytes = exl3::tile_bytes(kBits),
                         .strip_stride_bytes = 8 * exl3::tile_bytes(kBits),
                         .num_strips = kStrips,
                         .rows = rows,
                         .activations = activations.data(),
                         .scales = scales.data(),
                         .sums = sums.data(),
                         .sums_stride = kStrips * 16});
      ends[size_t(task)] = Clock::now();
    });
    double weights_per_ns = 0;  // each thread at its own pace, as work by ticket lets them
    for (size_t i = 0; i < starts.size(); ++i)
      weights_per_ns += kPasses * kStrips * 128.0 * 16.0 /
                        std::chrono::duration<double, std::nano>(ends[i] - starts[i]).count();
    best = std::min(best, 1 / weights_per_ns);
  }
  return best;
}

// Threads pinned one a core first, the caller among them.
std::unique_ptr<ThreadPool> pinned_pool(int num_threads) {
  const std::vector<int> cpus = onecard::cpu::worker_cpus(onecard::cpu::allowed_cores(), 4096);
  static const std::vector<int> all = cpus;  // before the first pin: affinity is then one CPU
  onecard::cpu::pin_this_thread(all[0]);
  return std::make_unique<ThreadPool>(num_threads, [](int thread) {
    onecard::cpu::pin_this_thread(all[size_t(thread) % all.size()]);
  });
}

struct Config {
  int threads, experts, rows, prefetch_bytes;
  onecard::cpu::Isa isa;
  ops::Exl3Precision precision;
};

void run(benchmark::State& state, const Config& config) {
  const auto pool = pinned_pool(config.threads);
  Exec exec;
  exec.isa = config.isa;
  exec.pool = pool.get();
  Exl3Experts engine({.hidden_size = kHidden,
                      .intermediate_size = kInner,
                      .precision = config.precision,
                      .prefetch_bytes = config.prefetch_bytes});
  static std::map<std::pair<int, int>, double> errors;
  const auto key = std::pair(int(config.isa), int(config.precision));
  if (errors.count(key) == 0) errors[key] = error_of_one_expert(engine, exec);
  const double bound = config.precision == ops::Exl3Precision::kInt8 ? 1.2e-2 : 6e-4;
  if (!(errors[key] <= bound)) return state.SkipWithError("wrong result, so not timed");

  std::mt19937 rng(uint32_t(config.threads * 100 + config.experts));
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t(config.rows * kHidden)), out(x.size());
  for (float& v : x) v = normal(rng);
  std::vector<int64_t> rows;
  for (int i = 0; i < config.rows; ++i) rows.push_back(i);
  const std::vector<float> weights(size_t(config.rows), 0.5f);
  std::vector<Exl3ExpertRows> work;
  std::vector<double> times;
  for (auto _ : state) {
    work.clear();
    for (int e = 0; e < config.experts; ++e)
      work.push_back(
          {Store::get().expert(int64_t(rng() % uint32_t(Store::get().size()))), rows, weights});
    const auto start = Clock::now();
    engine.forward_add(exec, {x.data(), config.rows, kHidden}, work,
                       {out.data(), config.rows, kHidden});
    times.push_back(ns_since(start));
    state.SetIterationTime(times.back() * 1e-9);
  }
  // A lower quartile: what the code takes when nobody else takes the core.
  std::nth_element(times.begin(), times.begin() + long(times.size() / 4), times.end());
  const double job_ns = times[times.size() / 4];
  state.counters["pool_threads"] = config.threads;
  state.counters["job_us"] = job_ns * 1e-3;
  if (config.experts == 0) return;
  const double read = onecard::cpu::measure_read_rate(
      *pool, Store::get().bytes().subspan(size_t(rng() % 4) << 29, size_t{1} << 29), 3);
  const double expert_ns = job_ns / config.experts;
  const double read_ns = kTileBytes / read * 1e9;
  const double compute_ns =
      kWeights * cached_ns_per_weight(*pool, config.isa, config.precision, config.rows);
  state.counters["ms_per_expert"] = expert_ns * 1e-6;
  state.counters["GB_per_s"] = kTileBytes / expert_ns;
  state.counters["read_GB_per_s"] = read * 1e-9;
  state.counters["fraction_of_read"] = read_ns / expert_ns;
  state.counters["over_bound"] = expert_ns / std::max(read_ns, compute_ns);
  state.counters["relative_error"] = errors[key];
}

// What a server does at start, on threads that may run on any CPU.
void choose(benchmark::State& state, const std::vector<int>& thread_counts, cpu_set_t cpus) {
  ExpertWeights weights;
  weights.num_layers = 1;
  weights.experts_per_layer = Store::get().size();
  weights.hidden_size = kHidden;
  weights.intermediate_size = kInner;
  for (int64_t e = 0; e < Store::get().size(); ++e) {
    const exl3::ExpertView expert = Store::get().expert(e);
    ExpertMatrices& matrices = weights.experts.emplace_back();
    const auto fill = [](ops::LinearWeight& w, const exl3::MatrixView& view) {
      w.format = ops::LinearWeight::Format::kExl3;
      w.in_features = view.in_features;
      w.out_features = view.out_features;
      w.exl3 = view;
    };
    fill(matrices.gate, expert.gate);
    fill(matrices.up, expert.up);
    fill(matrices.down, expert.down);
  }
  CpuExperts engine(std::move(weights));
  ExpertTiming timing;
  for (auto _ : state)
    std::thread([&] {
      sched_setaffinity(0, sizeof cpus, &cpus);
      timing = engine.choose_fastest(onecard::cpu::detect_isa(), thread_counts).value();
    }).join();
  state.counters["pool_threads"] = timing.num_threads;
  state.counters["prefetch_bytes"] = timing.prefetch_bytes;
  state.counters["ms_per_expert"] = timing.us_per_expert * 1e-3;
  state.counters["GB_per_s"] = timing.bytes_per_second * 1e-9;
  state.counters["read_GB_per_s"] = timing.read_bytes_per_second * 1e-9;
  state.counters["fraction_of_read"] = timing.bytes_per_second / timing.read_bytes_per_second;
}

void add(const char* what, const Config& c) {
  const std::string name =
      std::string(what) + "/" + onecard::cpu::isa_name(c.isa) +
      (c.precision == ops::Exl3Precision::kInt8 ? " int8" : "") +
      "/threads:" + std::to_string(c.threads) + "/experts:" + std::to_string(c.experts) +
      "/rows:" + std::to_string(c.rows) + "/prefetch:" + std::to_string(c.prefetch_bytes);
  benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { run(state, c); })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

const bool registered = [] {
  using onecard::cpu::Isa;
  constexpr auto kInt16 = ops::Exl3Precision::kInt16;
  const Isa isa = onecard::cpu::detect_isa();
  int all = 0;
  for (const auto& core : onecard::cpu::allowed_cores()) all += int(core.cpus.size());
  std::vector<int> counts{all};
  for (int t = 1; t < all; t *= 2) counts.push_back(t);
  for (const int threads : counts) {
    add("BM_Experts", {threads, 0, 1, 3072, isa, kInt16});
    for (const int experts : {1, 4})
      for (const int prefetch : {0, 3072})
        add("BM_Experts", {threads, experts, 1, prefetch, isa, kInt16});
  }
  for (const int rows : {2, 4, 8}) add("BM_Experts", {all, 4, rows, 3072, isa, kInt16});
  for (const Isa narrower : {Isa::kAvx2, Isa::kAvx512Vnni})
    if (narrower < isa) add("BM_Experts", {all, 4, 1, 3072, narrower, kInt16});
  if (isa >= Isa::kAvx512Vbmi) add("BM_Experts", {all, 4, 1, 3072, isa, ops::Exl3Precision::kInt8});
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (isa > Isa::kPlain && sched_getaffinity(0, sizeof cpus, &cpus) == 0)
    benchmark::RegisterBenchmark(
        "BM_ExpertTiming",
        [cpus, thread_counts = onecard::cpu::thread_counts(onecard::cpu::allowed_cores())](
            benchmark::State& state) { choose(state, thread_counts, cpus); })
        ->Iterations(1)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace onecard::experts
