// Every kernel and step that this machine can run, held to the plain ones.
#include "ops/exl3_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "quant/exl3/codebook.h"
#include "quant/exl3/tile.h"
#include "support/compare.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace onecard::ops {

void PrintTo(const Exl3Kernel* kernel, std::ostream* os) {
  *os << kernel->name << ' ' << exl3::codebook_name(kernel->codebook) << " K=" << kernel->bits;
}

namespace {

using onecard::cpu::Isa;

std::string kernel_name(const testing::TestParamInfo<const Exl3Kernel*>& info) {
  std::string name = std::string(info.param->name) + "_" +
                     exl3::codebook_name(info.param->codebook) + "_k" +
                     std::to_string(info.param->bits);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

Buffer<std::byte> random_bytes(int64_t size, uint32_t seed) {
  Buffer<std::byte> bytes(size);
  std::mt19937 rng(seed);
  for (auto& b : bytes.span()) b = std::byte(rng());
  return bytes;
}

const Exl3Kernel& plain_twin(const Exl3Kernel& kernel) {
  for (const Exl3Kernel* k : exl3_kernels(Isa::kPlain))
    if (k->precision == kernel.precision && k->codebook == kernel.codebook &&
        k->bits == kernel.bits)
      return *k;
  throw Error(ErrorCode::kNotFound, "no plain kernel");
}

// The activations of `rows` rows of one block, as `kernel` wants them, all from the same inputs.
struct Prepared {
  Buffer<std::byte> activations;
  std::vector<float> scales, offsets;
};
Prepared prepare(const Exl3Kernel& kernel, const Exl3Steps& steps, const std::vector<float>& x,
                 const std::vector<uint16_t>& suh) {
  const size_t rows = x.size() / 128;
  Prepared p{Buffer<std::byte>(int64_t(rows) * kernel.activation_bytes), std::vector<float>(rows),
             std::vector<float>(rows)};
  for (size_t r = 0; r < rows; ++r)
    steps.prepare(kernel, x.data() + 128 * r, suh.data(),
                  p.activations.data() + int64_t(r) * kernel.activation_bytes, &p.scales[r],
                  &p.offsets[r]);
  return p;
}

std::vector<float> random_rows(int rows, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t(rows) * 128);
  for (float& v : x) v = normal(rng);
  // Row 0 is a single outlier: after the Hadamard every activation of it has the largest magnitude
  // and one sign, which is what an int32 sum has to hold.
  std::fill_n(x.begin(), 128, 0.0f);
  x[0] = 1000;
  return x;
}

std::vector<uint16_t> random_scales(uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<uint16_t> s(128);
  for (auto& v : s)
    v = f32_to_f16((rng() & 1 ? 1.0f : -1.0f) * (0.5f + float(rng() % 1000) / 1000));
  return s;
}

class Kernels : public testing::TestWithParam<const Exl3Kernel*> {};

// Odd numbers of strips and rows, tiles close together and far apart, sums that are added to.
TEST_P(Kernels, MatchPlain) {
  const Exl3Kernel& kernel = *GetParam();
  const Exl3Kernel& plain = plain_twin(kernel);
  const Exl3Steps& plain_steps = exl3_steps(Isa::kPlain);
  const Exl3Steps& fast_steps = exl3_steps(kernel.isa);
  const int64_t tile = exl3::tile_bytes(kernel.bits);
  for (const bool native : {false, true})
    for (int rows = 1; rows <= std::min(9, kernel.max_rows); ++rows)
      for (const int strips : {1, 3}) {
        SCOPED_TRACE(testing::Message()
                     << "rows " << rows << " strips " << strips << " native " << native);
        const Buffer<std::byte> tiles = random_bytes(8 * strips * tile, uint32_t(7 + rows));
        const std::vector<float> x = random_rows(rows, uint32_t(rows));
        const std::vector<uint16_t> suh = random_scales(3);
        const int64_t stride = 16 * strips + 5;
        std::vector<float> got(size_t(rows * stride), 0.75f), want = got;
        const auto run = [&](const Exl3Kernel& k, const Exl3Steps& steps,
                             std::vector<float>& sums) {
          const Prepared p = prepare(k, steps, x, suh);
          k.multiply({.tiles = tiles.data(),
                      .tile_stride_bytes = native ? strips * tile : tile,
                      .strip_stride_bytes = native ? tile : 8 * tile,
                      .num_strips = strips,
                      .prefetch_bytes = rows % 2 ? 3072 : 0,
                      .rows = rows,
                      .activations = p.activations.data(),
                      .scales = p.scales.data(),
                      .sums = sums.data(),
                      .sums_stride = stride});
        };
        run(kernel, fast_steps, got);
        run(plain, plain_steps, want);
        if (kernel.precision == Exl3Precision::kF32) {
          // 128 products summed in f32, beside f64.
          EXPECT_LE(test::max_rel_error(got, want), 128 * std::numeric_limits<float>::epsilon());
        } else {
          EXPECT_EQ(got, want);  // the same integers, added in the same order
        }
      }
}

// The integer path stands for x . W: against the decoded values in f64, per weight rounding apart.
TEST_P(Kernels, SumsMeanCodebookValues) {
  const Exl3Kernel& kernel = *GetParam();
  const int64_t tile = exl3::tile_bytes(kernel.bits);
  const Buffer<std::byte> tiles = random_bytes(8 * tile, 99);
  std::vector<float> x = random_rows(2, 5);
  x.erase(x.begin(), x.begin() + 128);
  const std::vector<uint16_t> ones(128, f32_to_f16(1.0f));
  const Prepared p = prepare(kernel, exl3_steps(kernel.isa), x, ones);
  std::vector<float> sums(16, p.offsets[0]);
  kernel.multiply({.tiles = tiles.data(),
                   .tile_stride_bytes = tile,
                   .strip_stride_bytes = 8 * tile,
                   .num_strips = 1,
                   .rows = 1,
                   .activations = p.activations.data(),
                   .scales = p.scales.data(),
                   .sums = sums.data(),
                   .sums_stride = 16});
  // H x by its definition.
  std::vector<double> rotated(128, 0.0);
  for (int i = 0; i < 128; ++i)
    for (int j = 0; j < 128; ++j)
      rotated[size_t(i)] +=
          (__builtin_popcount(unsigned(i & j)) % 2 ? -1.0 : 1.0) * x[size_t(j)] / std::sqrt(128.0);
  std::vector<float> want(16), got(16);
  for (int c = 0; c < 16; ++c) {
    double sum = 0;
    for (int kt = 0; kt < 8; ++kt) {
      std::vector<float> w(256);
      exl3::decode_tile(tiles.data() + kt * tile, kernel.bits, kernel.codebook,
                        std::span<float, 256>(w.data(), 256));
      for (int k = 0; k < 16; ++k) sum += rotated[size_t(16 * kt + k)] * w[size_t(16 * k + c)];
    }
    want[size_t(c)] = float(sum);
    got[size_t(c)] = sums[size_t(c)] * exl3_gain(kernel.precision);
  }
  // A rounding step of the activations is range / (2 limit), some 3.5 sigma / limit at its largest,
  // uniform; relative to the product's own size that is 3.5 / sqrt(12) / limit. Codebook values
  // lose their fp16 rounding: 2^-12 / sqrt(3) of values near 1 at most. Three times both for 16
  // samples.
  const double activations =
      kernel.activation_limit == 0 ? 0 : 3.5 / std::sqrt(12.0) / kernel.activation_limit;
  const double values = kernel.precision == Exl3Precision::kF32 ? 1e-6 : std::ldexp(1, -12);
  EXPECT_LE(test::rel_rms_error(got, want), 3 * std::hypot(activations, values));
}

INSTANTIATE_TEST_SUITE_P(Exl3, Kernels,
                         testing::ValuesIn(exl3_kernels(onecard::cpu::detect_isa()).begin(),
                                           exl3_kernels(onecard::cpu::detect_isa()).end()),
                         kernel_name);

// In f32 a weight is the codebook's value to the bit: one-hot inputs read out every weight of so
// many strips that almost every state is among them.
class ExactKernels : public testing::TestWithParam<const Exl3Kernel*> {};
TEST_P(ExactKernels, ValuesAreTheCodebooks) {
  const Exl3Kernel& kernel = *GetParam();
  constexpr int kStrips = 160;
  const int64_t tile = exl3::tile_bytes(kernel.bits);
  const Buffer<std::byte> tiles = random_bytes(8 * kStrips * tile, 5);
  std::vector<float> decoded(128 * 16);
  for (const int rows : {1, 2, 128}) {
    // The inverse of what prepare() does: whatever the order of activations, row r reads weight
    // row hot[r], found from where the one lies.
    std::vector<float> sums(size_t(rows) * 16 * kStrips, 0.0f);
    Buffer<std::byte> activations(int64_t(rows) * kernel.activation_bytes);
    std::vector<float> one_hot(size_t(rows) * 128, 0.0f);
    for (int r = 0; r < rows; ++r) one_hot[size_t(r * 128 + (r * 37 + rows) % 128)] = 1;
    std::memcpy(activations.data(), one_hot.data(), one_hot.size() * sizeof(float));
    const std::vector<float> scales(size_t(rows), 1.0f);
    kernel.multiply({.tiles = tiles.data(),
                     .tile_stride_bytes = tile,
                     .strip_stride_bytes = 8 * tile,
                     .num_strips = kStrips,
                     .rows = rows,
                     .activations = activations.data(),
                     .scales = scales.data(),
                     .sums = sums.data(),
                     .sums_stride = 16 * kStrips});
    for (int strip = 0; strip < kStrips; ++strip) {
      for (int kt = 0; kt < 8; ++kt)
        exl3::decode_tile(tiles.data() + (8 * strip + kt) * tile, kernel.bits, kernel.codebook,
                          std::span<float, 256>(decoded.data() + 256 * kt, 256));
      for (int r = 0; r < rows; ++r) {
        const int at = (r * 37 + rows) % 128, in_tile = at % 16;
        // Position in the stream to row of the tile.
        const int row = kernel.activations == Exl3Activations::kNaturalF32
                            ? in_tile
                            : in_tile / 4 * 2 + (in_tile & 1) + (in_tile & 2) * 4;
        const float* const want = decoded.data() + (at / 16 * 16 + row) * 16;
        ASSERT_TRUE(std::equal(want, want + 16, sums.data() + (r * kStrips + strip) * 16))
            << "strip " << strip << " row " << r << " of " << rows;
      }
    }
  }
}

std::vector<const Exl3Kernel*> exact_kernels() {
  std::vector<const Exl3Kernel*> kernels;
  for (const Exl3Kernel* kernel : exl3_kernels(onecard::cpu::detect_isa()))
    if (kernel->precision == Exl3Precision::kF32) kernels.push_back(kernel);
  return kernels;
}
INSTANTIATE_TEST_SUITE_P(Exl3, ExactKernels, testing::ValuesIn(exact_kernels()), kernel_name);

// A call with many rows gives each row what a call with that row alone gives.
class RowsAlone : public testing::TestWithParam<Exl3Precision> {};
INSTANTIATE_TEST_SUITE_P(Exl3KernelSet, RowsAlone,
                         testing::Values(Exl3Precision::kInt16, Exl3Precision::kF32),
                         [](const auto& info) { return exl3_precision_name(info.param); });
TEST_P(RowsAlone, GiveTheSame) {
  constexpr int kRows = 23;
  for (const Isa isa : {Isa::kPlain, onecard::cpu::detect_isa()})
    for (const int bits : {2, 3, 4, 6}) {
      const Exl3KernelSet set(isa, GetParam(), exl3::Codebook::kMul1, bits);
      const int64_t tile = exl3::tile_bytes(bits);
      const Buffer<std::byte> tiles = random_bytes(8 * tile, 1);
      const std::vector<float> x = random_rows(kRows, 2);
      const std::vector<uint16_t> suh = random_scales(4);
      const auto run = [&](const std::vector<float>& rows) {
        const auto& kernel = set.for_rows(int64_t(rows.size()) / 128);
        const Prepared p = prepare(kernel, exl3_steps(isa), rows, suh);
        std::vector<float> sums(rows.size() / 128 * 16);
        kernel.multiply({.tiles = tiles.data(),
                         .tile_stride_bytes = tile,
                         .strip_stride_bytes = 8 * tile,
                         .num_strips = 1,
                         .rows = int(rows.size() / 128),
                         .activations = p.activations.data(),
                         .scales = p.scales.data(),
                         .sums = sums.data(),
                         .sums_stride = 16});
        return sums;
      };
      const std::vector<float> all = run(x);
      for (int r = 0; r < kRows; ++r)
        EXPECT_EQ(run(std::vector<float>(x.begin() + 128 * r, x.begin() + 128 * (r + 1))),
                  std::vector<float>(all.begin() + 16 * r, all.begin() + 16 * (r + 1)))
            << "row " << r << " K " << bits << ' ' << onecard::cpu::isa_name(isa);
    }
}

TEST(Exl3KernelSet, FallsBackToWhatFits) {
  const auto isa = onecard::cpu::detect_isa();
  using exl3::Codebook;
  EXPECT_EQ(Exl3KernelSet(isa, Exl3Precision::kInt16, Codebook::kMcg, 3).for_rows(1).precision,
            Exl3Precision::kF32);
  EXPECT_NE(Exl3KernelSet(isa, Exl3Precision::kInt8, Codebook::kMul1, 7).for_rows(1).precision,
            Exl3Precision::kF32);
  EXPECT_THROW(Exl3KernelSet(isa, Exl3Precision::kInt16, Codebook::kMul1, 9), Error);
  for (int bits = 1; bits <= 8; ++bits)
    for (const int64_t rows : {1, 2, 8, 9, kExl3MaxRows})
      EXPECT_GE(
          Exl3KernelSet(isa, Exl3Precision::kInt16, Codebook::kMul1, bits).for_rows(rows).max_rows,
          rows);
}

// ---- steps -------------------------------------------------------------------------------------

TEST(Exl3Steps, PrepareAndFinishGiveThePlainBits) {
  const auto isa = onecard::cpu::detect_isa();
  const std::vector<uint16_t> scales = random_scales(11);
  // Also for kernels that cannot run here: only their order of activations is used.
  for (const Exl3Kernel* kernel : exl3_kernels(Isa::kAvx512Vbmi)) {
    if (kernel->bits != 3) continue;
    std::vector<float> x = random_rows(4, 21);
    std::fill_n(x.begin() + 256, 128, 0.0f);
    std::fill_n(x.begin() + 384, 128, 1e-36f);  // its reciprocal scale would overflow
    const Prepared fast = prepare(*kernel, exl3_steps(isa), x, scales);
    const Prepared plain = prepare(*kernel, exl3_steps(Isa::kPlain), x, scales);
    EXPECT_TRUE(std::equal(fast.activations.span().begin(), fast.activations.span().end(),
                           plain.activations.span().begin()))
        << kernel->name;
    EXPECT_EQ(fast.scales, plain.scales) << kernel->name;
    EXPECT_EQ(fast.offsets, plain.offsets) << kernel->name;
  }
  const std::vector<float> sums = random_rows(2, 8);
  for (int r = 0; r < 2; ++r) {
    std::vector<float> fast(128), plain(128);
    exl3_steps(isa).finish(sums.data() + 128 * r, 0.007f, scales.data(), fast.data());
    exl3_steps(Isa::kPlain).finish(sums.data() + 128 * r, 0.007f, scales.data(), plain.data());
    EXPECT_EQ(fast, plain);
  }
}

TEST(Exl3Steps, NotFiniteStaysNotFinite) {
  const std::vector<uint16_t> scales = random_scales(1);
  for (const Isa isa : {Isa::kPlain, onecard::cpu::detect_isa()})
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x = random_rows(2, 1);
      x.erase(x.begin(), x.begin() + 128);
      x[77] = bad;
      const Exl3KernelSet set(isa, Exl3Precision::kInt16, exl3::Codebook::kMul1, 3);
      EXPECT_TRUE(std::isnan(prepare(set.for_rows(1), exl3_steps(isa), x, scales).scales[0]));
      std::vector<float> h(128), up(128, 1.0f);
      exl3_steps(isa).swiglu(x.data(), up.data(), 10, 1, h.data());
      if (std::isnan(bad)) {
        EXPECT_TRUE(std::isnan(h[77]));
      }
    }
}

TEST(Exl3Steps, SwigluMatchesPlain) {
  std::vector<float> gate(128), up(128), fast(128), plain(128);
  for (size_t i = 0; i < 128; ++i) {
    gate[i] = -90.0f + 1.5f * float(i);  // far below, around and above the limit
    up[i] = 20.0f * std::sin(float(i));
  }
  exl3_steps(onecard::cpu::detect_isa()).swiglu(gate.data(), up.data(), 10, 0.3f, fast.data());
  exl3_steps(Isa::kPlain).swiglu(gate.data(), up.data(), 10, 0.3f, plain.data());
  for (size_t i = 0; i < 128; ++i) {
    // Below -87 the exponential is clamped: silu is then within 1e-36 of zero either way.
    EXPECT_NEAR(fast[i], plain[i], 1e-6 * std::abs(plain[i]) + 1e-35) << gate[i];
  }
}

}  // namespace
}  // namespace onecard::ops
