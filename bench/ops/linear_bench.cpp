// One linear layer, one thread, for every format that a checkpoint's matrices have.
#include <benchmark/benchmark.h>

#include <cmath>
#include <vector>

#include "ops/linear.h"
#include "quant/exl3/layout.h"

namespace onecard {
namespace {

constexpr int64_t kIn = 1280, kOut = 2048;

void run(benchmark::State& state, const ops::LinearWeight& weight, int64_t weight_bytes) {
  const int64_t rows = state.range(0);
  Exec exec;
  exec.isa = cpu::detect_isa();
  std::vector<float> x(size_t(rows * kIn), 0.5f), out(size_t(rows * kOut));
  const View<const float> xv(x.data(), rows, kIn);
  const View<float> ov(out.data(), rows, kOut);
  ops::linear(exec, xv, weight, ov);
  std::vector<float> plain(out.size() / size_t(rows));
  ops::linear(Exec{}, xv.rows_between(0, 1), weight, View<float>(plain.data(), 1, kOut));
  for (int64_t o = 0; o < kOut; ++o)
    if (std::abs(plain[size_t(o)] - out[size_t(o)]) > 1e-3f)
      return state.SkipWithError("wrong result, so not timed");
  for (auto _ : state) {
    ops::linear(exec, xv, weight, ov);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * weight_bytes);
  state.counters["weights/s"] =
      benchmark::Counter(double(state.iterations() * kIn * kOut), benchmark::Counter::kIsRate);
}

void BM_LinearBf16(benchmark::State& state) {
  const std::vector<uint16_t> bits(size_t(kIn * kOut), 0x3C00);  // 2^-7
  ops::LinearWeight weight;
  weight.format = ops::LinearWeight::Format::kBf16;
  weight.in_features = kIn;
  weight.out_features = kOut;
  weight.data = bits.data();
  run(state, weight, kIn * kOut * 2);
}
BENCHMARK(BM_LinearBf16)->ArgName("rows")->Arg(1)->Arg(8)->Arg(64)->UseRealTime();

void BM_LinearExl3(benchmark::State& state) {
  const int bits = int(state.range(1));
  std::vector<uint16_t> words(size_t(kIn * kOut * bits / 16));
  for (size_t i = 0; i < words.size(); ++i) words[i] = uint16_t(i * 40503u >> 3);
  const std::vector<uint16_t> suh(kIn, 0x2400), svh(kOut, 0x3C00);  // 2^-6, 1
  exl3::MatrixView native;
  native.in_features = kIn;
  native.out_features = kOut;
  native.bits = bits;
  native.data = reinterpret_cast<const std::byte*>(words.data());
  native.suh = suh;
  native.svh = svh;
  const int64_t band_bytes = exl3::group_bytes(kIn, kOut, bits, exl3::Layout::kBand);
  std::vector<std::byte> tiles(words.size() * 2 + 64);
  ops::LinearWeight weight;
  weight.format = ops::LinearWeight::Format::kExl3;
  weight.in_features = kIn;
  weight.out_features = kOut;
  weight.exl3 = exl3::reorder(native, exl3::Layout::kBand, tiles.data(), band_bytes);
  run(state, weight, int64_t(words.size()) * 2);
}
BENCHMARK(BM_LinearExl3)
    ->ArgNames({"rows", "K"})
    ->Args({1, 3})
    ->Args({8, 3})
    ->Args({64, 3})
    ->Args({1, 5})
    ->Args({1, 6})
    ->Args({1, 8})
    ->UseRealTime();

}  // namespace
}  // namespace onecard
