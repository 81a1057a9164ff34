// Cycles per weight of every EXL3 kernel that runs here, one thread, weights in the second-level
// cache. Each is compared with the plain kernel of its precision before it is timed.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/isa.h"
#include "ops/exl3_kernels.h"
#include "quant/exl3/codebook.h"
#include "tensor/buffer.h"

namespace onecard::ops {
namespace {

// A dependent 64-bit multiplication takes three cycles on every x86-64 core of the last decade.
// (Dependent adds of a constant do not take one: some cores fold them while renaming.)
double measured_ghz() {
  using Clock = std::chrono::steady_clock;
  constexpr int kProducts = 1'000'000;
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    uint64_t a = 3;
    const auto start = Clock::now();
    for (int i = 0; i < kProducts / 4; ++i)
      asm volatile("imul %0,%0\n imul %0,%0\n imul %0,%0\n imul %0,%0\n" : "+r"(a));
    const double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
    best = std::max(best, 3 * kProducts / ns);
  }
  return best;
}

struct Work {
  Buffer<std::byte> tiles;
  Buffer<std::byte> activations;
  std::vector<float> scales;
  std::vector<float> sums;

  Work(const Exl3Kernel& kernel, int strips, int rows)
      : tiles(strips * 8 * exl3::tile_bytes(kernel.bits)),
        activations(rows * kernel.activation_bytes),
        scales(size_t(rows)),
        sums(size_t(rows * strips * 16)) {
    std::mt19937 rng(1);
    for (auto& b : tiles.span()) b = std::byte(rng());
    std::normal_distribution<float> normal;
    std::vector<float> x(128);
    const std::vector<uint16_t> ones(128, 0x3c00);
    for (int r = 0; r < rows; ++r) {
      for (float& v : x) v = normal(rng);
      float offset;
      exl3_steps(kernel.isa)
          .prepare(kernel, x.data(), ones.data(), activations.data() + r * kernel.activation_bytes,
                   &scales[size_t(r)], &offset);
    }
  }
  Exl3Strips strips(const Exl3Kernel& kernel, int first, int num_strips, int rows) {
    return {.tiles = tiles.data() + first * 8 * exl3::tile_bytes(kernel.bits),
            .tile_stride_bytes = exl3::tile_bytes(kernel.bits),
            .strip_stride_bytes = 8 * exl3::tile_bytes(kernel.bits),
            .num_strips = num_strips,
            .rows = rows,
            .activations = activations.data(),
            .scales = scales.data(),
            .sums = sums.data(),
            .sums_stride = num_strips * 16};
  }
};

bool agrees_with_plain(const Exl3Kernel& kernel, int rows) {
  for (const Exl3Kernel* plain : exl3_kernels(cpu::Isa::kPlain)) {
    if (plain->precision != kernel.precision || plain->codebook != kernel.codebook ||
        plain->bits != kernel.bits)
      continue;
    Work got(kernel, 4, rows), want(*plain, 4, rows);
    kernel.multiply(got.strips(kernel, 0, 4, rows));
    plain->multiply(want.strips(*plain, 0, 4, rows));
    double error = 0, size = 0;
    for (size_t i = 0; i < got.sums.size(); ++i) {
      error = std::max(error, std::abs(double(got.sums[i]) - want.sums[i]));
      size = std::max(size, std::abs(double(want.sums[i])));
    }
    return error <= 2e-5 * size;
  }
  return false;
}

void run(benchmark::State& state, const Exl3Kernel& kernel, int rows) {
  if (!agrees_with_plain(kernel, rows)) return state.SkipWithError("wrong result, so not timed");
  const double ghz = measured_ghz();  // each time: the clock follows the load
  // 384 KiB of weights: beyond the first-level cache, inside the second; with many rows a 16th, so
  // that an iteration stays short. In calls of 8 strips, the width of a band.
  const int64_t bytes = (rows > 8 ? 24 : 384) * 1024;
  const int num_strips = int(bytes / (8 * exl3::tile_bytes(kernel.bits))) / 8 * 8;
  Work work(kernel, num_strips, rows);
  double best_ns = 1e30;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (int strip = 0; strip < num_strips; strip += 8)
      kernel.multiply(work.strips(kernel, strip, 8, rows));
    benchmark::ClobberMemory();
    const double ns =
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    best_ns = std::min(best_ns, ns);
  }
  const double weights = double(num_strips) * 128 * 16;
  state.counters["ghz"] = ghz;
  state.counters["cycles_per_weight"] = best_ns * ghz / weights;  // of the fastest iteration
  state.counters["cycles_per_weight_row"] = best_ns * ghz / weights / rows;
}

const bool registered = [] {
  for (const Exl3Kernel* kernel : exl3_kernels(cpu::detect_isa())) {
    if (kernel->isa == cpu::Isa::kPlain) continue;
    for (const int rows : {1, 2, 3, 4, 6, 8, 64, 256}) {
      if (rows > kernel->max_rows) continue;
      const std::string name = std::string("BM_Exl3Strips/") + kernel->name + "/" +
                               exl3::codebook_name(kernel->codebook) +
                               "/K:" + std::to_string(kernel->bits) +
                               "/rows:" + std::to_string(rows);
      benchmark::RegisterBenchmark(
          name.c_str(), [kernel, rows](benchmark::State& state) { run(state, *kernel, rows); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace onecard::ops
