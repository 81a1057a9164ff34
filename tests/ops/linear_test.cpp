#include "ops/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "quant/exl3/layout.h"
#include "support/compare.h"
#include "support/exl3_vectors.h"
#include "tensor/dtype.h"

namespace onecard::ops {
namespace {

using Format = LinearWeight::Format;
constexpr float kEps = std::numeric_limits<float>::epsilon();
const std::vector<Format> kDenseFormats{Format::kF32, Format::kF16, Format::kBf16,
                                        Format::kFp8Block32, Format::kFp4Block32};

const char* format_name(Format format) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "fp8", "fp4", "exl3"};
  return kNames[int(format)];
}

std::vector<cpu::Isa> isas_here() {
  std::vector<cpu::Isa> isas{cpu::Isa::kPlain};
  if (cpu::detect_isa() >= cpu::Isa::kAvx2) isas.push_back(cpu::Isa::kAvx2);
  return isas;
}

std::vector<float> random_values(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// A weight of any format with its memory, and its values as f32.
struct Stored {
  LinearWeight weight;
  std::vector<float> values;  // [out, in], exact; empty for EXL3
  std::vector<float> f32;
  std::vector<uint16_t> words, suh, svh;
  std::vector<uint8_t> codes, scales;
  std::vector<std::byte> tiles;
};

Stored make_dense(Format format, int64_t in, int64_t out, unsigned seed) {
  Stored s;
  s.weight.format = format;
  s.weight.in_features = in;
  s.weight.out_features = out;
  const std::vector<float> source = random_values(size_t(in * out), seed);
  std::mt19937 random(seed);
  const int64_t num_scales = (in + 31) / 32;
  s.scales.resize(size_t(out * num_scales));
  for (uint8_t& scale : s.scales) scale = uint8_t(120 + random() % 8);
  s.codes.resize(size_t(out * in));
  for (int64_t o = 0; o < out; ++o)
    for (int64_t i = 0; i < in; ++i) {
      const float value = source[size_t(o * in + i)];
      switch (format) {
        case Format::kF32:
          s.f32.push_back(value);
          s.values.push_back(value);
          break;
        case Format::kF16:
          s.words.push_back(f32_to_f16(value));
          s.values.push_back(f16_to_f32(s.words.back()));
          break;
        case Format::kBf16:
          s.words.push_back(f32_to_bf16(value));
          s.values.push_back(bf16_to_f32(s.words.back()));
          break;
        case Format::kFp8Block32: {
          const uint8_t code = f32_to_e4m3(value);
          s.codes[size_t(o * in + i)] = code;
          s.values.push_back(e4m3_to_f32(code) *
                             e8m0_to_f32(s.scales[size_t(o / 32 * num_scales + i / 32)]));
          break;
        }
        default: {
          const uint8_t code = f32_to_e2m1(std::clamp(value, -6.0f, 6.0f));
          s.codes[size_t((o * in + i) / 2)] |= uint8_t(code << (i % 2 * 4));
          s.values.push_back(e2m1_to_f32(code) *
                             e8m0_to_f32(s.scales[size_t(o * num_scales + i / 32)]));
        }
      }
    }
  s.weight.data = format == Format::kF32 ? static_cast<const void*>(s.f32.data())
                  : s.words.empty()      ? static_cast<const void*>(s.codes.data())
                                         : static_cast<const void*>(s.words.data());
  s.weight.scales = s.scales.data();
  return s;
}

Stored make_exl3(int64_t in, int64_t out, int bits, exl3::Codebook codebook, exl3::Layout layout,
                 unsigned seed) {
  Stored s;
  std::mt19937 random(seed);
  s.words.resize(size_t(in / 16 * (out / 16) * 16 * bits));
  for (uint16_t& word : s.words) word = uint16_t(random());
  for (int64_t i = 0; i < in; ++i) s.suh.push_back(f32_to_f16(random() % 2 ? 0.03f : -0.02f));
  for (int64_t i = 0; i < out; ++i) s.svh.push_back(f32_to_f16(random() % 2 ? 0.7f : -1.3f));
  exl3::MatrixView native;
  native.in_features = in;
  native.out_features = out;
  native.bits = bits;
  native.codebook = codebook;
  native.data = reinterpret_cast<const std::byte*>(s.words.data());
  native.suh = s.suh;
  native.svh = s.svh;
  s.tiles.resize(s.words.size() * 2);
  s.weight.format = Format::kExl3;
  s.weight.in_features = in;
  s.weight.out_features = out;
  s.weight.exl3 =
      exl3::reorder(native, layout, s.tiles.data(), exl3::group_bytes(in, out, bits, layout));
  return s;
}

std::vector<float> run(const Exec& exec, const LinearWeight& w, const std::vector<float>& x,
                       int64_t rows) {
  std::vector<float> out(size_t(rows * w.out_features), std::nanf(""));
  linear(exec, {x.data(), rows, w.in_features}, w, {out.data(), rows, w.out_features});
  return out;
}

Exec exec_of(cpu::Isa isa, ThreadPool* pool = nullptr) {
  Exec exec;
  exec.isa = isa;
  exec.pool = pool;
  return exec;
}

// ---- against vectors of an independent implementation

struct VectorLinear {
  VectorLinear(const std::string& name, int64_t in, int64_t out, int bits, exl3::Codebook codebook,
               int64_t index = 0) {
    const auto& vectors = test::Exl3Vectors::get();
    trellis = vectors.u16(name + "_trellis.u16");
    suh = vectors.f16_bits(name + "_suh.f16");
    svh = vectors.f16_bits(name + "_svh.f16");
    weight.format = Format::kExl3;
    weight.in_features = weight.exl3.in_features = in;
    weight.out_features = weight.exl3.out_features = out;
    weight.exl3.bits = bits;
    weight.exl3.codebook = codebook;
    weight.exl3.data =
        reinterpret_cast<const std::byte*>(trellis.data() + index * in * out * bits / 16);
    weight.exl3.suh = std::span(suh).subspan(size_t(index * in), size_t(in));
    weight.exl3.svh = std::span(svh).subspan(size_t(index * out), size_t(out));
  }
  std::vector<uint16_t> trellis, suh, svh;
  LinearWeight weight;
};

TEST(LinearExl3Golden, EveryLinearOfTheVectors) {
  const auto& vectors = test::Exl3Vectors::get();
  for (const json::Value& item : vectors.manifest().find("linear_cases")->items()) {
    const std::string name = item.find("name")->as_string(), book = item.find("book")->as_string();
    const auto number = [&](const char* key) { return *item.find(key)->as_int64(); };
    const VectorLinear linear_case(name, number("k"), number("n"), int(number("K")),
                                   book == "mul1"  ? exl3::Codebook::kMul1
                                   : book == "mcg" ? exl3::Codebook::kMcg
                                                   : exl3::Codebook::k3Inst);
    const std::vector<float> x = vectors.f16(name + "_x.f16");
    std::vector<float> want;
    for (const double y : vectors.f64(name + "_y.f64")) want.push_back(float(y));
    EXPECT_LE(test::max_rel_error(run({}, linear_case.weight, x, number("m")), want), kEps) << name;
    for (const cpu::Isa isa : isas_here())  // below the 5e-4 that fp16 activations are allowed
      EXPECT_LE(test::rel_rms_error(run(exec_of(isa), linear_case.weight, x, number("m")), want),
                2e-6)
          << name << " " << cpu::isa_name(isa);
  }
}

TEST(LinearExl3Golden, ExpertLayer) {
  const auto& vectors = test::Exl3Vectors::get();
  const int64_t hidden = 256, inner = 128, tokens = 4, top_k = 2;
  const std::vector<float> x = vectors.f16("moe_x.f16"), weights = vectors.f16("moe_wt.f16");
  const std::vector<int32_t> selected = vectors.i32("moe_sel.i32");
  std::vector<float> want;
  for (const double y : vectors.f64("moe_y.f64")) want.push_back(float(y));
  for (const cpu::Isa isa : isas_here()) {
    std::vector<float> y(size_t(tokens * hidden));
    for (int64_t slot = 0; slot < tokens * top_k; ++slot) {
      const int64_t e = selected[size_t(slot)];
      const auto matrix = [&](const char* name, int64_t in, int64_t out) {
        return VectorLinear(name, in, out, 3, exl3::Codebook::kMul1, e);
      };
      const std::vector<float> row(x.begin() + slot / top_k * hidden,
                                   x.begin() + (slot / top_k + 1) * hidden);
      const auto gate = run(exec_of(isa), matrix("moe_gate", hidden, inner).weight, row, 1);
      const auto up = run(exec_of(isa), matrix("moe_up", hidden, inner).weight, row, 1);
      std::vector<float> act(static_cast<size_t>(inner));
      for (size_t i = 0; i < act.size(); ++i)
        act[i] =
            std::min(gate[i] / (1 + std::exp(-gate[i])), 10.0f) * std::clamp(up[i], -10.0f, 10.0f);
      const auto down = run(exec_of(isa), matrix("moe_down", inner, hidden).weight, act, 1);
      for (int64_t i = 0; i < hidden; ++i)
        y[size_t(slot / top_k * hidden + i)] += weights[size_t(slot)] * down[size_t(i)];
    }
    // Gate and up side by side, then down.
    EXPECT_LE(test::rel_rms_error(y, want), 4e-6) << cpu::isa_name(isa);
  }
}

// ---- dense formats

TEST(LinearDense, HandWorkedFp4NibbleOrder) {
  LinearWeight w;
  w.format = Format::kFp4Block32;
  w.in_features = 4;
  w.out_features = 1;
  const std::vector<uint8_t> codes{0x72, 0x9F};  // low nibble first: 1, 6, -6, -0.5
  const std::vector<uint8_t> scales{128};        // times 2
  w.data = codes.data();
  w.scales = scales.data();
  EXPECT_EQ(run({}, w, {1, 10, 100, 1000}, 1)[0], 2 * (1 + 60 - 600 - 500));
}

TEST(LinearDense, HandWorkedFp8TileScales) {
  LinearWeight w;
  w.format = Format::kFp8Block32;
  w.in_features = 64;
  w.out_features = 64;
  const std::vector<uint8_t> codes(64 * 64, 0x38);        // 1.0
  const std::vector<uint8_t> scales{127, 128, 129, 130};  // 1, 2, 4, 8
  w.data = codes.data();
  w.scales = scales.data();
  const auto y = run({}, w, std::vector<float>(64, 1), 1);
  EXPECT_EQ(y[0], 32 * 3);
  EXPECT_EQ(y[31], 32 * 3);
  EXPECT_EQ(y[32], 32 * 12);
}

TEST(LinearDense, EveryFormatAndIsaAgainstLongSums) {
  for (const Format format : kDenseFormats)
    for (const int64_t in : {2, 31, 64, 77, 160})
      for (const int64_t out : {1, 5, 33, 64})
        for (const int64_t rows : {1, 4, 7}) {
          if (format == Format::kFp4Block32 && in % 2 != 0) continue;
          const Stored s = make_dense(format, in, out, unsigned(in * 100 + out));
          const auto x = random_values(size_t(rows * in), 5);
          for (const cpu::Isa isa : isas_here()) {
            const auto got = run(exec_of(isa), s.weight, x, rows);
            for (int64_t t = 0; t < rows; ++t)
              for (int64_t o = 0; o < out; ++o) {
                long double sum = 0, magnitude = 0;
                for (int64_t i = 0; i < in; ++i) {
                  const long double term =
                      (long double)(s.values[size_t(o * in + i)]) * x[size_t(t * in + i)];
                  sum += term;
                  magnitude += std::fabs(term);
                }
                // f64 sums, one rounding; or 8 chains of in/8 f32 products, then three sums.
                const double terms = isa == cpu::Isa::kPlain ? 1 : double(in) / 8 + 5;
                ASSERT_NEAR(got[size_t(t * out + o)], double(sum), terms * kEps * double(magnitude))
                    << format_name(format) << " " << in << "x" << out << " row " << t << " output "
                    << o << " " << cpu::isa_name(isa);
              }
          }
        }
}

// ---- what holds for every format

std::vector<Stored> one_of_each() {
  std::vector<Stored> all;
  for (const Format format : kDenseFormats) all.push_back(make_dense(format, 256, 384, 3));
  for (int bits = 1; bits <= 8; ++bits)
    for (const auto codebook :
         {exl3::Codebook::k3Inst, exl3::Codebook::kMcg, exl3::Codebook::kMul1})
      all.push_back(make_exl3(256, 384, bits, codebook,
                              bits % 3 == 0   ? exl3::Layout::kNative
                              : bits % 3 == 1 ? exl3::Layout::kBand
                                              : exl3::Layout::kKBlock,
                              unsigned(bits)));
  return all;
}

// Activations in 15 bits, the codebook not rounded to fp16: 0.04% of a product, 0.06% at most.
TEST(LinearParity, Int16ProductsOfDenseMatricesAreAskedForAndStayClose) {
  for (const Stored& s : one_of_each())
    for (const cpu::Isa isa : isas_here()) {
      const auto x = random_values(5 * 256, 17);
      Exec exec = exec_of(isa);
      const auto exact = run(exec, s.weight, x, 5);
      exec.dense_int16 = true;
      const double difference = test::rel_rms_error(run(exec, s.weight, x, 5), exact);
      EXPECT_LE(difference, 6e-4);
      const bool rounds = isa != cpu::Isa::kPlain && s.weight.format == Format::kExl3 &&
                          s.weight.exl3.codebook == exl3::Codebook::kMul1;
      EXPECT_EQ(difference > 5e-5, rounds) << format_name(s.weight.format);
    }
}

TEST(LinearParity, Avx2EqualsPlain) {
  if (cpu::detect_isa() < cpu::Isa::kAvx2) GTEST_SKIP() << "no AVX2 here";
  for (const Stored& s : one_of_each())
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9}) {
      const auto x = random_values(size_t(rows * 256), 17);
      // 256 products and two 7-step transforms in f32. A codebook value that is not rounded to fp16
      // would show as 2e-4.
      EXPECT_LE(test::rel_rms_error(run(exec_of(cpu::Isa::kAvx2), s.weight, x, rows),
                                    run(exec_of(cpu::Isa::kPlain), s.weight, x, rows)),
                (std::sqrt(256.0) + 14) * kEps)
          << format_name(s.weight.format) << " K=" << s.weight.exl3.bits << " codebook "
          << int(s.weight.exl3.codebook) << " rows " << rows;
    }
}

TEST(LinearProperty, NeitherThreadsNorOtherRowsChangeARow) {
  ThreadPool pool(3);
  const int64_t rows = 300;  // more than one pass
  const auto x = random_values(size_t(rows * 256), 23);
  std::vector<Stored> all = one_of_each();
  for (size_t i = 0; i < all.size(); i += 4)
    for (const cpu::Isa isa : isas_here()) {
      const LinearWeight& w = all[i].weight;
      const auto whole = run(exec_of(isa), w, x, rows);
      EXPECT_EQ(whole, run(exec_of(isa, &pool), w, x, rows)) << format_name(w.format);
      for (const int64_t t : {0, 2, 255, 256, 299}) {
        const std::vector<float> row(x.begin() + t * 256, x.begin() + (t + 1) * 256);
        const auto alone = run(exec_of(isa), w, row, 1);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.begin() + t * w.out_features))
            << format_name(w.format) << " row " << t << " " << cpu::isa_name(isa);
      }
    }
}

TEST(LinearProperty, OutputSlicesAreTheWhole) {
  const auto x = random_values(2 * 256, 29);
  for (const Stored& s : one_of_each()) {
    if (s.weight.exl3.data != nullptr && s.weight.exl3.layout == exl3::Layout::kNative) {
      EXPECT_THROW(s.weight.out_rows(0, 128), Error);
      continue;
    }
    for (const cpu::Isa isa : isas_here()) {
      const auto whole = run(exec_of(isa), s.weight, x, 2);
      for (const auto& [begin, end] : {std::pair{0, 128}, std::pair{128, 384}}) {
        const auto part = run(exec_of(isa), s.weight.out_rows(begin, end), x, 2);
        for (int64_t t = 0; t < 2; ++t)
          EXPECT_TRUE(std::equal(part.begin() + t * (end - begin),
                                 part.begin() + (t + 1) * (end - begin),
                                 whole.begin() + t * 384 + begin))
              << format_name(s.weight.format) << " " << begin << ".." << end;
      }
    }
  }
}

TEST(LinearProperty, WidenedWeightIsTheSameMatrix) {
  for (const Stored& s : one_of_each()) {
    std::vector<float> w(256 * 384);
    widen(s.weight, {w.data(), 384, 256});
    if (!s.values.empty()) {
      EXPECT_EQ(w, s.values) << format_name(s.weight.format);
      continue;
    }
    LinearWeight plain;
    plain.in_features = 256;
    plain.out_features = 384;
    plain.data = w.data();
    const auto x = random_values(2 * 256, 41);
    EXPECT_LE(test::rel_rms_error(run({}, plain, x, 2), run({}, s.weight, x, 2)), 2 * kEps)
        << "K=" << s.weight.exl3.bits;
  }
}

TEST(LinearProperty, StridedRowsAndOutputs) {
  // One diagonal block of a block-diagonal matrix: columns of x and of out.
  const Stored s = make_dense(Format::kBf16, 64, 96, 31);
  const auto x = random_values(3 * 200, 37);
  for (const cpu::Isa isa : isas_here()) {
    std::vector<float> out(3 * 300, 7.0f), packed;
    const View<const float> wide(x.data(), 3, 200);
    const View<float> target(out.data(), 3, 300);
    linear(exec_of(isa), wide.cols_between(64, 128), s.weight, target.cols_between(100, 196));
    for (int64_t t = 0; t < 3; ++t)
      packed.insert(packed.end(), wide.row(t) + 64, wide.row(t) + 128);
    const auto want = run(exec_of(isa), s.weight, packed, 3);
    for (int64_t t = 0; t < 3; ++t)
      for (int64_t c = 0; c < 300; ++c)
        ASSERT_EQ(target.row(t)[c], c >= 100 && c < 196 ? want[size_t(t * 96 + c - 100)] : 7.0f);
  }
}

TEST(Linear, RefusesBadShapesAndCuts) {
  const Stored s = make_dense(Format::kFp8Block32, 64, 64, 1);
  std::vector<float> x(128), out(128);
  EXPECT_THROW(linear({}, {x.data(), 2, 32}, s.weight, {out.data(), 2, 64}), Error);
  EXPECT_THROW(linear({}, {x.data(), 2, 64}, s.weight, {out.data(), 1, 64}), Error);
  EXPECT_THROW(s.weight.out_rows(16, 64), Error);
  EXPECT_THROW(s.weight.out_rows(32, 96), Error);
  LinearWeight no_scales = s.weight;
  no_scales.scales = nullptr;
  EXPECT_THROW(linear({}, {x.data(), 2, 64}, no_scales, {out.data(), 2, 64}), Error);
}

}  // namespace
}  // namespace onecard::ops
