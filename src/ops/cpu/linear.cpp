#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/exl3_linear.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/linear_avx2.h"
#include "quant/exl3/hadamard.h"
#include "quant/exl3/reconstruct.h"
#include "quant/exl3/tile.h"
#include "tensor/dtype.h"

namespace onecard::ops::cpu {
namespace {

using Format = LinearWeight::Format;

// Below this many products a second thread costs more than it saves.
constexpr int64_t kProductsWorthThreads = 1 << 16;
constexpr int64_t kOutputsPerTask = 24;  // 8 blocks of 3 outputs: the widest block of the AVX2 path
constexpr int64_t kRowsPerPass = 256;    // of one EXL3 pass: bounds the sums a thread keeps

// Scratch of the calling thread: grown once, then kept.
template <typename T, int kSlot>
T* scratch(int64_t size) {
  thread_local std::vector<T> memory;
  if (int64_t(memory.size()) < size) memory.resize(size_t(size));
  return memory.data();
}

void for_tasks(const Exec& exec, int64_t num_tasks, int64_t products,
               const std::function<void(int64_t, int)>& task) {
  if (exec.pool != nullptr && products >= kProductsWorthThreads)
    return exec.pool->run(num_tasks, task);
  for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
}

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table;
    for (int code = 0; code < 256; ++code) table[size_t(code)] = e4m3_to_f32(uint8_t(code));
    return table;
  }();
  return values;
}

// Row `o` of W in f32, exact.
void widen_row(const LinearWeight& w, int64_t o, float* row) {
  const int64_t in = w.in_features;
  const int64_t num_scales = (in + 31) / 32;
  switch (w.format) {
    case Format::kF32:
      std::copy_n(static_cast<const float*>(w.data) + o * in, in, row);
      return;
    case Format::kF16: {
      const auto* bits = static_cast<const uint16_t*>(w.data) + o * in;
      for (int64_t i = 0; i < in; ++i) row[i] = f16_to_f32(bits[i]);
      return;
    }
    case Format::kBf16: {
      const auto* bits = static_cast<const uint16_t*>(w.data) + o * in;
      for (int64_t i = 0; i < in; ++i) row[i] = bf16_to_f32(bits[i]);
      return;
    }
    case Format::kFp8Block32: {
      const std::array<float, 256>& value = e4m3_values();
      const auto* codes = static_cast<const uint8_t*>(w.data) + o * in;
      for (int64_t i = 0; i < in; i += 32) {
        const float scale = e8m0_to_f32(w.scales[o / 32 * num_scales + i / 32]);
        for (int64_t k = i; k < std::min(in, i + 32); ++k) row[k] = value[codes[k]] * scale;
      }
      return;
    }
    case Format::kFp4Block32: {
      const auto* pairs = static_cast<const uint8_t*>(w.data) + o * (in / 2);
      for (int64_t i = 0; i < in; i += 32) {
        const float scale = e8m0_to_f32(w.scales[o * num_scales + i / 32]);
        for (int64_t k = i; k < std::min(in, i + 32); k += 2) {
          row[k] = e2m1_to_f32(pairs[k / 2] & 15) * scale;
          row[k + 1] = e2m1_to_f32(pairs[k / 2] >> 4) * scale;
        }
      }
      return;
    }
    case Format::kExl3:
      return;
  }
}

// ---- dense formats

void dense_plain(View<const float> x, const LinearWeight& w, View<float> out, int64_t begin,
                 int64_t end) {
  float* const row = scratch<float, 0>(w.in_features);
  for (int64_t o = begin; o < end; ++o) {
    widen_row(w, o, row);
    for (int64_t t = 0; t < x.rows; ++t) {
      const float* const input = x.row(t);
      double sum = 0;
      for (int64_t i = 0; i < x.cols; ++i) sum += double(row[i]) * input[i];
      out.row(t)[o] = float(sum);
    }
  }
}

void dense_avx2(View<const float> x, const LinearWeight& w, View<float> out, int64_t begin,
                int64_t end) {
  const int64_t in = w.in_features;
  const auto dot = [&](avx2::WeightType type, const void* rows) {
    avx2::dot_rows(type, rows, in, end - begin, x.data, x.stride, x.rows, out.data + begin,
                   out.stride);
  };
  switch (w.format) {
    case Format::kF32:
      return dot(avx2::WeightType::kF32, static_cast<const float*>(w.data) + begin * in);
    case Format::kF16:
      return dot(avx2::WeightType::kF16, static_cast<const uint16_t*>(w.data) + begin * in);
    case Format::kBf16:
      return dot(avx2::WeightType::kBf16, static_cast<const uint16_t*>(w.data) + begin * in);
    default: {
      float* const rows = scratch<float, 0>(kOutputsPerTask * in);
      for (int64_t o = begin; o < end; ++o) widen_row(w, o, rows + (o - begin) * in);
      return dot(avx2::WeightType::kF32, rows);
    }
  }
}

void dense(const Exec& exec, View<const float> x, const LinearWeight& w, View<float> out) {
  const int64_t num_tasks = (w.out_features + kOutputsPerTask - 1) / kOutputsPerTask;
  const bool wide = exec.isa >= ::onecard::cpu::Isa::kAvx2;
  for_tasks(exec, num_tasks, x.rows * w.in_features * w.out_features, [&](int64_t task, int) {
    const int64_t begin = task * kOutputsPerTask;
    const int64_t end = std::min(w.out_features, begin + kOutputsPerTask);
    if (wide)
      dense_avx2(x, w, out, begin, end);
    else
      dense_plain(x, w, out, begin, end);
  });
}

// ---- EXL3: xh = H(x suh) once, then a task for every 128 outputs: z = xh Wi, y = (H z) svh

void exl3_outputs_plain(const exl3::MatrixView& w, View<const double> xh, int64_t group,
                        View<float> out) {
  double* const z = scratch<double, 1>(xh.rows * exl3::kGroupDim);
  std::fill_n(z, xh.rows * exl3::kGroupDim, 0.0);
  std::array<float, exl3::kTileWeights> tile;
  for (int64_t a = 0; a < w.in_features / exl3::kTileDim; ++a)
    for (int64_t b = 0; b < 8; ++b) {
      exl3::decode_tile(w.tile(a, 8 * group + b), w.bits, w.codebook, tile);
      for (int64_t t = 0; t < xh.rows; ++t) {
        double* const sums = z + t * exl3::kGroupDim + b * exl3::kTileDim;
        const double* const input = xh.row(t) + a * exl3::kTileDim;
        for (int64_t k = 0; k < exl3::kTileDim; ++k)
          for (int64_t c = 0; c < exl3::kTileDim; ++c)
            sums[c] += input[k] * double(tile[size_t(k * exl3::kTileDim + c)]);
      }
    }
  exl3::hadamard(std::span<double>(z, size_t(xh.rows * exl3::kGroupDim)));
  for (int64_t t = 0; t < xh.rows; ++t)
    for (int64_t c = 0; c < exl3::kGroupDim; ++c) {
      const int64_t o = group * exl3::kGroupDim + c;
      out.row(t)[o] = float(z[t * exl3::kGroupDim + c] * double(f16_to_f32(w.svh[size_t(o)])));
    }
}

void exl3_plain(const Exec& exec, View<const float> x, const exl3::MatrixView& w, View<float> out) {
  double* const memory = scratch<double, 0>(x.rows * x.cols);
  for (int64_t t = 0; t < x.rows; ++t) {
    const std::span<double> row(memory + t * x.cols, size_t(x.cols));
    for (int64_t i = 0; i < x.cols; ++i)
      row[size_t(i)] = double(x.row(t)[i]) * double(f16_to_f32(w.suh[size_t(i)]));
    exl3::hadamard(row);
  }
  const View<const double> xh(memory, x.rows, x.cols);
  for_tasks(exec, w.out_features / exl3::kGroupDim, x.rows * w.in_features * w.out_features,
            [&](int64_t group, int) { exl3_outputs_plain(w, xh, group, out); });
}

}  // namespace

void linear(const Exec& exec, View<const float> x, const LinearWeight& w, View<float> out) {
  if (w.format != Format::kExl3) return dense(exec, x, w, out);
  if (exec.isa >= ::onecard::cpu::Isa::kAvx2)
    return exl3_linear(exec, exec.dense_int16 ? Exl3Precision::kInt16 : Exl3Precision::kF32, x,
                       w.exl3, out);
  for (int64_t begin = 0; begin < x.rows; begin += kRowsPerPass) {
    const int64_t end = std::min(x.rows, begin + kRowsPerPass);
    exl3_plain(exec, x.rows_between(begin, end), w.exl3, out.rows_between(begin, end));
  }
}

void widen(const LinearWeight& w, View<float> out) {
  if (w.format != Format::kExl3) {
    for (int64_t o = 0; o < w.out_features; ++o) widen_row(w, o, out.row(o));
    return;
  }
  std::vector<float> transposed(size_t(w.in_features * w.out_features));
  exl3::reconstruct(w.exl3, {transposed.data(), w.in_features, w.out_features});
  for (int64_t i = 0; i < w.in_features; ++i)
    for (int64_t o = 0; o < w.out_features; ++o)
      out.row(o)[i] = transposed[size_t(i * w.out_features + o)];
}

}  // namespace onecard::ops::cpu
