#include "ops/cpu/exl3_linear.h"

#include <algorithm>
#include <functional>

#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace onecard::ops::cpu {
namespace {

constexpr int64_t kBlock = exl3::kGroupDim;
// Rows of one task: their activations of a block and a decoded strip fit the first-level cache.
constexpr int64_t kRowsPerTask = 96;
// Below this many products a second thread costs more than it saves.
constexpr int64_t kProductsWorthThreads = 1 << 18;

void for_tasks(const Exec& exec, int64_t num_tasks, int64_t products,
               const std::function<void(int64_t)>& task) {
  if (exec.pool != nullptr && num_tasks > 1 && products >= kProductsWorthThreads)
    return exec.pool->run(num_tasks, [&](int64_t task_idx, int) { task(task_idx); });
  for (int64_t i = 0; i < num_tasks; ++i) task(i);
}

// Memory of the calling thread, grown once and kept.
struct Scratch {
  Buffer<std::byte> activations;  // [blocks][rows][activation_bytes]
  Buffer<float> scales;           // [blocks][rows]
  Buffer<float> offsets;          // [blocks][rows], then summed over blocks into the first row

  void grow(int64_t blocks, int64_t rows, int64_t activation_bytes) {
    if (activations.size() < blocks * rows * activation_bytes)
      activations = Buffer<std::byte>(blocks * rows * activation_bytes);
    if (scales.size() < blocks * rows) {
      scales = Buffer<float>(blocks * rows);
      offsets = Buffer<float>(blocks * rows);
    }
  }
};

void linear_pass(const Exec& exec, const Exl3Kernel& kernel, View<const float> x,
                 const exl3::MatrixView& w, View<float> out) {
  const Exl3Steps& steps = exl3_steps(exec.isa);
  const int64_t rows = x.rows, blocks = w.in_features / kBlock, groups = w.out_features / kBlock;
  thread_local Scratch memory;
  memory.grow(blocks, rows, kernel.activation_bytes);
  std::byte* const activations = memory.activations.data();
  float* const scales = memory.scales.data();
  float* const offsets = memory.offsets.data();

  for_tasks(exec, rows, rows * w.in_features * 16, [&](int64_t r) {
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t at = b * rows + r;
      steps.prepare(kernel, x.row(r) + b * kBlock, w.suh.data() + b * kBlock,
                    activations + at * kernel.activation_bytes, scales + at, offsets + at);
    }
    for (int64_t b = 1; b < blocks; ++b) offsets[r] += offsets[b * rows + r];
  });

  const int64_t row_tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  for_tasks(exec, groups * row_tasks, rows * w.in_features * w.out_features, [&](int64_t task) {
    const int64_t group = task / row_tasks, first = task % row_tasks * kRowsPerTask;
    const int64_t num = std::min(kRowsPerTask, rows - first);
    alignas(64) float sums[kRowsPerTask * kBlock];
    for (int64_t r = 0; r < num; ++r) std::fill_n(sums + r * kBlock, kBlock, offsets[first + r]);
    const int64_t column = group * kBlock / exl3::kTileDim;
    for (int64_t b = 0; b < blocks; ++b) {
      const std::byte* const tiles = w.tile(8 * b, column);
      kernel.multiply({.tiles = tiles,
                       .tile_stride_bytes = w.tile(8 * b + 1, column) - tiles,
                       .strip_stride_bytes = w.tile(8 * b, column + 1) - tiles,
                       .num_strips = 8,
                       .rows = int(num),
                       .activations = activations + (b * rows + first) * kernel.activation_bytes,
                       .scales = scales + b * rows + first,
                       .sums = sums,
                       .sums_stride = kBlock});
    }
    for (int64_t r = 0; r < num; ++r)
      steps.finish(sums + r * kBlock, exl3_gain(kernel.precision), w.svh.data() + group * kBlock,
                   out.row(first + r) + group * kBlock);
  });
}

}  // namespace

void exl3_linear(const Exec& exec, Exl3Precision precision, View<const float> x,
                 const exl3::MatrixView& w, View<float> out) {
  const Exl3KernelSet& kernels = exl3_fastest(exec.isa, precision, w.codebook, w.bits);
  for (int64_t begin = 0; begin < x.rows; begin += kExl3MaxRows) {
    const int64_t end = std::min<int64_t>(x.rows, begin + kExl3MaxRows);
    linear_pass(exec, kernels.for_rows(end - begin), x.rows_between(begin, end), w,
                out.rows_between(begin, end));
  }
}

}  // namespace onecard::ops::cpu
