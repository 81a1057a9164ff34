// EXL3 products on the device against the plain CPU path, whose codebooks, states and products are
// held to the golden vectors of the format.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cuda/device.h"
#include "cuda/random_exl3.h"
#include "ops/linear.h"
#include "quant/exl3/reconstruct.h"
#include "support/compare.h"
#include "support/exl3_vectors.h"

namespace onecard::ops {
namespace {

using exl3::Codebook;
using exl3::Layout;
using test::DeviceArray;
using test::DeviceMatrix;
using test::LaidOutMatrix;
using test::random_values;

// Activations keep 22 bits and products are exact. A sum of at most 64 mma, each of which may cut
// its result at the last bit of f32 instead of rounding it, and short sums in f32 after it.
constexpr double kError = 64 * 0x1p-24;

LinearWeight weight_of(const exl3::MatrixView& matrix) {
  LinearWeight weight;
  weight.format = LinearWeight::Format::kExl3;
  weight.in_features = matrix.in_features;
  weight.out_features = matrix.out_features;
  weight.exl3 = matrix;
  return weight;
}

struct Case {
  int64_t in, out;
  int bits;
  Codebook codebook;
  Layout layout;
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << c.in << "x" << c.out << " K=" << c.bits << " codebook " << int(c.codebook) << " layout "
         << int(c.layout);
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int bits = 1; bits <= 8; ++bits)
    for (const Codebook codebook : {Codebook::k3Inst, Codebook::kMcg, Codebook::kMul1})
      for (const Layout layout : {Layout::kNative, Layout::kBand, Layout::kKBlock})
        if (layout == Layout::kBand || codebook == Codebook::kMul1)
          all.push_back({256, 128, bits, codebook, layout});
  all.push_back({128, 384, 3, Codebook::kMul1, Layout::kBand});
  all.push_back({1280, 256, 5, Codebook::kMul1, Layout::kBand});
  all.push_back({1152, 128, 3, Codebook::kMul1, Layout::kKBlock});  // a last slice that is short
  return all;
}

class CudaExl3 : public test::CudaTest, public testing::WithParamInterface<Case> {
 protected:
  std::vector<float> product(const exl3::MatrixView& device, const std::vector<float>& x,
                             int64_t rows) {
    const DeviceArray<float> input(x);
    const DeviceArray<float> out(rows * device.out_features);
    linear(exec, input.view(rows, device.in_features), weight_of(device),
           out.view(rows, device.out_features));
    return out.host();
  }
};

TEST_P(CudaExl3, EqualsThePlainPath) {
  const Case c = GetParam();
  const LaidOutMatrix matrix(c.in, c.out, c.bits, c.codebook, c.layout, 7);
  const DeviceMatrix device(matrix.view, matrix.tiles.size());
  constexpr int64_t kMostRows = 70;
  const std::vector<float> x = random_values(kMostRows * c.in, 11);
  std::vector<float> want(size_t(kMostRows * c.out));
  linear({}, {x.data(), kMostRows, c.in}, weight_of(matrix.native.view),
         {want.data(), kMostRows, c.out});
  std::vector<float> most;
  for (const int64_t rows :
       {kMostRows, int64_t{1}, int64_t{3}, int64_t{8}, int64_t{9}, int64_t{16}, int64_t{17}}) {
    const std::vector<float> got = product(device.view, {x.begin(), x.begin() + rows * c.in}, rows);
    EXPECT_LT(test::rel_rms_error(got, std::span(want).first(got.size())), kError) << rows;
    if (most.empty()) most = got;
    // No row knows of the others, whichever kernel computed it.
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], most[i]) << rows << " at " << i;
  }
}

TEST_P(CudaExl3, ReconstructsTheInnerMatrixToTheBit) {
  const Case c = GetParam();
  const LaidOutMatrix matrix(c.in, c.out, c.bits, c.codebook, c.layout, 13);
  const DeviceMatrix device(matrix.view, matrix.tiles.size());
  std::vector<float> want(size_t(c.in * c.out));
  exl3::decode_inner(matrix.native.view, {want.data(), c.in, c.out});
  const DeviceArray<uint16_t> out(c.in * c.out);
  exl3_reconstruct_inner(exec, device.view, {out.data(), c.out, c.in});
  const std::vector<uint16_t> got = out.host();
  for (int64_t o = 0; o < c.out; ++o)
    for (int64_t i = 0; i < c.in; ++i)
      ASSERT_EQ(got[size_t(o * c.in + i)], f32_to_f16(want[size_t(i * c.out + o)]))
          << "output " << o << " input " << i;
}

INSTANTIATE_TEST_SUITE_P(All, CudaExl3, testing::ValuesIn(cases()));

class CudaExl3Golden : public test::CudaTest {};

TEST_F(CudaExl3Golden, EveryLinearOfTheVectors) {
  const auto& vectors = test::Exl3Vectors::get();
  for (const json::Value& item : vectors.manifest().find("linear_cases")->items()) {
    const std::string name = item.find("name")->as_string(), book = item.find("book")->as_string();
    const auto number = [&](const char* key) { return *item.find(key)->as_int64(); };
    const int64_t in = number("k"), out = number("n"), rows = number("m");
    exl3::MatrixView matrix;
    matrix.in_features = in;
    matrix.out_features = out;
    matrix.bits = int(number("K"));
    matrix.codebook = book == "mul1"  ? Codebook::kMul1
                      : book == "mcg" ? Codebook::kMcg
                                      : Codebook::k3Inst;
    const std::vector<uint16_t> trellis = vectors.u16(name + "_trellis.u16");
    const std::vector<uint16_t> suh = vectors.f16_bits(name + "_suh.f16");
    const std::vector<uint16_t> svh = vectors.f16_bits(name + "_svh.f16");
    matrix.data = reinterpret_cast<const std::byte*>(trellis.data());
    matrix.suh = suh;
    matrix.svh = svh;
    const DeviceMatrix device(matrix, int64_t(trellis.size()) * 2);
    const DeviceArray<float> x(vectors.f16(name + "_x.f16")), y(rows * out);
    linear(exec, x.view(rows, in), weight_of(device.view), y.view(rows, out));
    std::vector<float> want;
    for (const double value : vectors.f64(name + "_y.f64")) want.push_back(float(value));
    EXPECT_LT(test::rel_rms_error(y.host(), want), kError) << name;
  }
}

class CudaExl3Each : public test::CudaTest {};

TEST_F(CudaExl3Each, ProductsOfOneLaunchAreThoseOfSeveral) {
  const LaidOutMatrix a(256, 128, 3, Codebook::kMul1, Layout::kBand, 1);
  const LaidOutMatrix b(384, 256, 3, Codebook::kMul1, Layout::kBand, 2);
  const LaidOutMatrix c(256, 128, 5, Codebook::kMcg, Layout::kBand, 3);
  const DeviceMatrix on_a(a.view, a.tiles.size()), on_b(b.view, b.tiles.size()),
      on_c(c.view, c.tiles.size());
  const LinearWeight wa = weight_of(on_a.view), wb = weight_of(on_b.view),
                     wc = weight_of(on_c.view);
  constexpr int64_t kRows = 5;
  // Columns of a wider matrix, and none of them aligned: nothing may assume that rows are.
  const DeviceArray<float> x(random_values(kRows * 385, 4));
  const View<const float> narrow(x.data() + 1, kRows, 256, 385),
      wide(x.data() + 1, kRows, 384, 385);
  const DeviceArray<float> together(kRows * 512), alone(kRows * 512);
  const auto out = [&](const DeviceArray<float>& all, int64_t begin, int64_t end) {
    return all.view(kRows, 512).cols_between(begin, end);
  };
  const LinearCall calls[] = {{narrow, &wa, out(together, 0, 128)},
                              {wide, &wb, out(together, 128, 384)},
                              {narrow, &wc, out(together, 384, 512)}};
  linear_each(exec, calls);
  linear(exec, narrow, wa, out(alone, 0, 128));
  linear(exec, wide, wb, out(alone, 128, 384));
  linear(exec, narrow, wc, out(alone, 384, 512));
  EXPECT_EQ(together.host(), alone.host());
}

}  // namespace
}  // namespace onecard::ops
