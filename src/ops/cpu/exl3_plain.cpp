// Plain kernels and steps: baseline code, the reference of every other. The integer ones compute
// the same integers as the fast ones and add them in the same order, so that those can be compared
// bit by bit; what they share is the format's own decoder, nothing else.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "ops/cpu/exl3_isa.h"
#include "quant/exl3/codebook.h"
#include "quant/exl3/hadamard.h"
#include "quant/exl3/tile.h"
#include "tensor/dtype.h"

namespace onecard::ops::cpu_exl3 {
namespace {

using exl3::Codebook;
using std::byte;

constexpr int kTilesPerStrip = 8;

// The integer of a MUL1 state: the sum of its product's bytes.
int byte_sum(uint16_t state) {
  const uint32_t p = state * exl3::kMul1Multiplier;
  return int((p & 0xff) + (p >> 8 & 0xff) + (p >> 16 & 0xff) + (p >> 24));
}

const byte* tile_of(const Exl3Strips& a, int strip, int tile) {
  return a.tiles + strip * a.strip_stride_bytes + tile * a.tile_stride_bytes;
}

template <int K>
void multiply_int16(const Exl3Strips& a) {
  for (int strip = 0; strip < a.num_strips; ++strip) {
    std::array<std::array<int, 16>, 128> w;
    for (int kt = 0; kt < kTilesPerStrip; ++kt) {
      std::array<uint16_t, exl3::kTileWeights> states;
      exl3::tile_states(tile_of(a, strip, kt), K, states);
      for (int t = 0; t < exl3::kTileWeights; ++t)
        w[size_t(16 * kt + exl3::stream_row(t))][size_t(exl3::stream_col(t))] =
            byte_sum(states[size_t(t)]);
    }
    for (int r = 0; r < a.rows; ++r) {
      std::array<int16_t, 128> x;
      std::memcpy(x.data(), a.activations + r * 256, 256);
      for (size_t c = 0; c < 16; ++c) {
        int32_t sum = 0;
        for (size_t k = 0; k < 128; ++k) sum += x[k] * w[k][c];
        a.sums[r * a.sums_stride + 16 * strip + int64_t(c)] += a.scales[r] * float(sum);
      }
    }
  }
}

template <int K, Codebook B>
void multiply_f32(const Exl3Strips& a) {
  for (int strip = 0; strip < a.num_strips; ++strip) {
    std::array<float, 128 * 16> w;
    for (int kt = 0; kt < kTilesPerStrip; ++kt)
      exl3::decode_tile(tile_of(a, strip, kt), K, B,
                        std::span<float, 256>(w.data() + 256 * kt, 256));
    for (int r = 0; r < a.rows; ++r) {
      std::array<float, 128> x;
      std::memcpy(x.data(), a.activations + r * 512, 512);
      for (size_t c = 0; c < 16; ++c) {
        double sum = 0;
        for (size_t k = 0; k < 128; ++k) sum += double(x[k]) * w[16 * k + c];
        a.sums[r * a.sums_stride + 16 * strip + int64_t(c)] += float(sum);
      }
    }
  }
}

constexpr int row_of(int group, int j) { return 2 * group + (j & 1) + 8 * (j >> 1); }

template <typename T>
void put(byte*& out, T value, int copies) {
  for (int i = 0; i < copies; ++i, out += sizeof(T)) std::memcpy(out, &value, sizeof(T));
}

void pack(Exl3Activations order, const std::array<int16_t, 128>& x, byte* out) {
  for (int kt = 0; kt < kTilesPerStrip; ++kt) {
    const int16_t* const tile = x.data() + 16 * kt;
    switch (order) {
      case Exl3Activations::kNatural16:
        for (int k = 0; k < 16; ++k) put(out, tile[k], 1);
        break;
      case Exl3Activations::kDoubled16:
        for (int j = 0; j < 4; ++j)
          for (int g = 0; g < 4; ++g) put(out, tile[row_of(g, j)], 2);
        break;
      case Exl3Activations::kGrouped16:
        for (int g = 0; g < 4; ++g)
          for (int j = 0; j < 4; ++j) put(out, tile[row_of(g, j)], 1);
        break;
      case Exl3Activations::kGrouped8:
        for (int g = 0; g < 4; ++g)
          for (int j = 0; j < 4; ++j) put(out, int8_t(tile[row_of(g, j)]), 2);
        break;
      case Exl3Activations::kNaturalF32:
      case Exl3Activations::kStreamF32:
        return;
    }
  }
}

void prepare(const Exl3Kernel& kernel, const float* x, const uint16_t* suh, byte* activations,
             float* scale, float* offset) {
  std::array<float, 128> v;
  for (size_t i = 0; i < 128; ++i) v[i] = x[i] * f16_to_f32(suh[i]);
  exl3::hadamard(v);
  if (kernel.activation_limit == 0) {
    if (kernel.activations == Exl3Activations::kStreamF32)
      for (int kt = 0; kt < kTilesPerStrip; ++kt)
        for (int g = 0; g < 4; ++g)
          for (int j = 0; j < 4; ++j) put(activations, v[size_t(16 * kt + row_of(g, j))], 1);
    else
      std::memcpy(activations, v.data(), sizeof v);
    *scale = 1;
    *offset = 0;
    return;
  }
  float largest = 0;
  float poison = 0;  // becomes NaN when an input is not finite: the integers cannot say it
  for (const float value : v) {
    largest = std::max(largest, std::abs(value));
    poison += value * 0;
  }
  // Below this the reciprocal would overflow, and nothing that small matters.
  const float step = largest > kExl3SmallestStep ? largest / float(kernel.activation_limit) : 1;
  const float inverse = 1 / step;
  std::array<int16_t, 128> q{};
  int sum = 0;
  for (size_t i = 0; i < 128; ++i) {
    q[i] = poison == 0 && largest > kExl3SmallestStep ? int16_t(std::nearbyint(v[i] * inverse)) : 0;
    sum += q[i];
  }
  pack(kernel.activations, q, activations);
  *scale = step + poison;
  *offset = *scale * float(sum) * kExl3OffsetGain;
}

void finish(const float* sums, float gain, const uint16_t* svh, float* y) {
  std::array<float, 128> v;
  for (size_t i = 0; i < 128; ++i) v[i] = sums[i] * gain;
  exl3::hadamard(v);
  for (size_t i = 0; i < 128; ++i) y[i] = v[i] * f16_to_f32(svh[i]);
}

void swiglu(const float* gate, const float* up, float limit, float weight, float* h) {
  for (int i = 0; i < 128; ++i) {
    const double a = gate[i] > limit ? limit : gate[i];
    const double b = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    h[i] = float(weight * (a / (1 + std::exp(-a)) * b));
  }
}

void add(const float* a, const float* b, int64_t n, float* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] = a[i] + b[i];
}

template <int K>
constexpr Exl3Kernel int_kernel(const char* name, Exl3Precision precision, int limit) {
  return {name,         onecard::cpu::Isa::kPlain,   precision, Codebook::kMul1, K,
          kExl3MaxRows, Exl3Activations::kNatural16, 256,       limit,           multiply_int16<K>};
}
template <int K, Codebook B>
constexpr Exl3Kernel f32_kernel() {
  return {"plain f32",
          onecard::cpu::Isa::kPlain,
          Exl3Precision::kF32,
          B,
          K,
          kExl3MaxRows,
          Exl3Activations::kNaturalF32,
          512,
          0,
          multiply_f32<K, B>};
}

template <int... I>
struct Tables {
  static constexpr Exl3Kernel kKernels[] = {
      int_kernel<I + 1>("plain int8", Exl3Precision::kInt8, kExl3Int8Limit)...,
      int_kernel<I + 1>("plain int16", Exl3Precision::kInt16, kExl3Int16Limit)...,
      f32_kernel<I + 1, Codebook::kMul1>()..., f32_kernel<I + 1, Codebook::kMcg>()...,
      f32_kernel<I + 1, Codebook::k3Inst>()...};
};
template <int... I>
constexpr KernelTable table(std::integer_sequence<int, I...>) {
  return {Tables<I...>::kKernels, sizeof(Tables<I...>::kKernels) / sizeof(Exl3Kernel)};
}

}  // namespace

constinit const KernelTable kPlainKernels = table(std::make_integer_sequence<int, 8>());
constinit const Exl3Steps kPlainSteps{prepare, finish, swiglu, add};

}  // namespace onecard::ops::cpu_exl3
