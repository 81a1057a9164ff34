#include <benchmark/benchmark.h>

#include <cmath>
#include <vector>

#include "ops/rms_norm.h"

namespace onecard {
namespace {

void BM_RmsNorm(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const int64_t hidden = 5120;
  const Exec exec{};  // plain path, one thread; the CUDA twin times with events on its own stream
  std::vector<float> x(size_t(tokens * hidden), 0.5f), w(size_t(hidden), 1.0f), out(x.size());
  const View<const float> xv{x.data(), tokens, hidden};
  const View<float> ov{out.data(), tokens, hidden};
  ops::rms_norm(exec, xv, w, 1e-6f, ov);
  if (std::abs(out.back() - 1.0f) > 1e-4f) return state.SkipWithError("wrong result, so not timed");
  for (auto _ : state) {
    ops::rms_norm(exec, xv, w, 1e-6f, ov);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * (2 * tokens + 1) * hidden * int64_t(sizeof(float)));
}
BENCHMARK(BM_RmsNorm)->ArgName("tokens")->Arg(1)->Arg(32)->UseRealTime();

}  // namespace
}  // namespace onecard
