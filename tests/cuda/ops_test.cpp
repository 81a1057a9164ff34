// Every op of the CUDA backend against its plain CPU path: odd sizes, strides, values at the edges
// of the number formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cuda/device.h"
#include "cuda/random_exl3.h"
#include "ops/compressor.h"
#include "ops/embedding.h"
#include "ops/engram_gate.h"
#include "ops/hyper_connection.h"
#include "ops/kv_rows.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/router.h"
#include "ops/swiglu.h"
#include "support/compare.h"

namespace onecard::ops {
namespace {

using test::DeviceArray;
using test::random_values;

class CudaOps : public test::CudaTest {};

TEST_F(CudaOps, RmsNorm) {
  for (const auto& [rows, cols, size] : {std::tuple<int64_t, int64_t, float>{1, 64, 1.0f},
                                         {3, 77, 1.0f},
                                         {2, 5120, 1.0f},
                                         {2, 33, 1e-10f}}) {  // near sqrt(eps), where eps shows
    const std::vector<float> x = random_values(rows * cols, 1, size), w = random_values(cols, 2);
    std::vector<float> want(x.size());
    rms_norm({}, {x.data(), rows, cols}, w, 1e-20f, {want.data(), rows, cols});
    const DeviceArray<float> dx(x), dw(w);
    rms_norm(exec, dx.view(rows, cols), dw.span(), 1e-20f, dx.view(rows, cols));
    EXPECT_LT(test::max_rel_error(dx.host(), want), 1e-6) << rows << "x" << cols;
  }
}

TEST_F(CudaOps, RopeBothWays) {
  const int64_t rows = 3, dim = 24, vectors = 2, rotated = 10;
  const std::vector<float> x = random_values(rows * dim * vectors, 1);
  std::vector<float> angles(rows * rotated);
  const std::vector<int64_t> positions{0, 17, 262143};
  rope_angles({}, positions, rope_frequencies(10000, rotated), {angles.data(), rows, rotated});
  for (const bool inverse : {false, true}) {
    std::vector<float> want = x;
    rope({}, {want.data(), rows, dim * vectors}, dim, {angles.data(), rows, rotated}, inverse);
    const DeviceArray<float> dx(x), da(angles);
    rope(exec, dx.view(rows, dim * vectors), dim, da.view(rows, rotated), inverse);
    EXPECT_LT(test::max_abs_error(dx.host(), want), 1e-6);
  }
}

TEST_F(CudaOps, SwigluPoolAndEngramGate) {
  const std::vector<float> gate = random_values(3 * 77, 1, 4), up = random_values(3 * 77, 2, 4),
                           weights = random_values(3, 3);
  std::vector<float> want(gate.size());
  swiglu({}, {gate.data(), 3, 77}, {up.data(), 3, 77}, weights, 2.5f, {want.data(), 3, 77});
  const DeviceArray<float> dg(gate), du(up), dw(weights);
  swiglu(exec, dg.view(3, 77), du.view(3, 77), dw.span(), 2.5f, dg.view(3, 77));
  EXPECT_LT(test::max_rel_error(dg.host(), want), 1e-6);

  const std::vector<float> keys = random_values(6 * 40, 4), gates = random_values(6 * 40, 5, 30);
  std::vector<float> pooled(3 * 40);
  pool_groups({}, {keys.data(), 6, 40}, {gates.data(), 6, 40}, 2, {pooled.data(), 3, 40});
  const DeviceArray<float> dk(keys), dt(gates), dp(3 * 40);
  pool_groups(exec, dk.view(6, 40), dt.view(6, 40), 2, dp.view(3, 40));
  EXPECT_LT(test::max_rel_error(dp.host(), pooled), 2e-6);

  const int64_t hidden = 300, streams = 4;
  std::vector<float> key_val = random_values(2 * (streams + 1) * hidden, 6);
  std::vector<float> x = random_values(2 * streams * hidden, 7);
  const std::vector<float> qk = random_values(streams * hidden, 8);
  for (int64_t c = 0; c < hidden; ++c) key_val[size_t(c)] = 0;  // the gate at its smallest root
  const DeviceArray<float> dkv(key_val), dx(x), dqk(qk);
  engram_gate_add({}, {key_val.data(), 2, (streams + 1) * hidden}, qk, 1e-20f,
                  {x.data(), 2, streams * hidden});
  engram_gate_add(exec, dkv.view(2, (streams + 1) * hidden), dqk.span(), 1e-20f,
                  dx.view(2, streams * hidden));
  EXPECT_LT(test::max_rel_error(dx.host(), x), 2e-6);
}

TEST_F(CudaOps, EmbedEveryFormat) {
  const int64_t ids = 7, hidden = 33;
  const std::vector<float> table = random_values(ids * hidden, 1);
  std::vector<uint16_t> half, bf16;
  for (const float value : table) {
    half.push_back(f32_to_f16(value));
    bf16.push_back(f32_to_bf16(value));
  }
  const std::vector<int32_t> tokens{6, 0, 3, 3};
  const DeviceArray<int32_t> device_tokens(tokens);
  const DeviceArray<float> dt(table);
  const DeviceArray<uint16_t> dh(half), db(bf16);
  const auto check = [&](LinearWeight::Format format, const void* host, const void* device) {
    LinearWeight w;
    w.format = format;
    w.in_features = hidden;
    w.out_features = ids;
    w.data = host;
    std::vector<float> want(size_t(4 * hidden));
    embed({}, w, tokens, {want.data(), 4, hidden});
    w.data = device;
    const DeviceArray<float> out(4 * hidden);
    embed(exec, w, device_tokens.span(), out.view(4, hidden));
    EXPECT_EQ(out.host(), want);
  };
  check(LinearWeight::Format::kF32, table.data(), dt.data());
  check(LinearWeight::Format::kF16, half.data(), dh.data());
  check(LinearWeight::Format::kBf16, bf16.data(), db.data());
}

// Rows whose packing is decided at every kind of boundary: ties of the grids, amax exactly a power
// of two and one place above, subnormal codes, zeros of both signs, the smallest scales.
std::vector<float> packing_rows(int64_t rows, int64_t dim) {
  std::mt19937 random(3);
  std::vector<float> x = random_values(rows * dim, 4);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < dim; ++c) {
      float& value = x[size_t(r * dim + c)];
      if (r % 6 == 1) value = float(int(random() % 25) - 12) * 0.25f;      // ties of e2m1
      if (r % 6 == 2) value = std::ldexp(value, int(random() % 60) - 40);  // all magnitudes
      if (r % 6 == 3) value = c % 16 == 0 ? (r % 2 ? 448.0f : 6.0f) : value * 0x1p-8f;
      if (r % 6 == 4) value = c % 2 ? 0.0f : -0.0f;
      if (r % 6 == 5) value = float(int(random() % 65) - 32) * (1.0f / 16.0f) * 0x1p-9f;
    }
  return x;
}

TEST_F(CudaOps, KvRowsPackToTheByteAndUnpackToTheBit) {
  for (const auto& [format, dim] : {std::pair{KvFormat::kFp8Block32, int64_t{512}},
                                    {KvFormat::kFp4Block32, int64_t{128}},
                                    {KvFormat::kFp4Block16, int64_t{512}},
                                    {KvFormat::kFp4Block16, int64_t{48}},
                                    {KvFormat::kFp8Block32, int64_t{96}},
                                    {KvFormat::kF32, int64_t{33}}}) {
    const int64_t rows = 25, bytes = kv_row_bytes(format, dim);
    const std::vector<float> x = packing_rows(rows, dim);
    std::vector<std::byte> want(size_t(rows * bytes));
    const KvRows packed{want.data(), bytes, dim, format};
    pack_kv_rows({}, {x.data(), rows, dim}, packed);
    std::vector<float> values(x.size());
    unpack_kv_rows({}, as_const(packed), {values.data(), rows, dim});

    const DeviceArray<float> dx(x), back(rows * dim);
    const DeviceArray<std::byte> out(rows * bytes);
    const KvRows device{out.data(), bytes, dim, format};
    pack_kv_rows(exec, dx.view(rows, dim), device);
    EXPECT_EQ(out.host(), want) << int(format) << " " << dim;
    unpack_kv_rows(exec, as_const(device), back.view(rows, dim));
    const std::vector<float> got = back.host();
    EXPECT_EQ(std::memcmp(got.data(), values.data(), got.size() * sizeof(float)), 0);

    if (format == KvFormat::kF32) continue;
    std::vector<float> fake = x;
    fake_quantise({}, format, dim, {fake.data(), rows / 5, 5 * dim});
    fake_quantise(exec, format, dim, dx.view(rows / 5, 5 * dim));
    const std::vector<float> device_fake = dx.host();
    EXPECT_EQ(std::memcmp(device_fake.data(), fake.data(), fake.size() * sizeof(float)), 0);
  }
}

TEST_F(CudaOps, HyperConnections) {
  for (const auto& [streams, hidden, rows, iters] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t>{4, 160, 1, 20},
        {4, 300, 6, 20},
        {2, 77, 5, 3},
        {3, 50, 2, 1},
        {8, 40, 3, 7}}) {
    const int64_t width = (2 + streams) * streams, cols = streams * hidden;
    const std::vector<float> x = random_values(rows * cols, 1),
                             fn = random_values(width * cols, 2, 0.1f),
                             base = random_values(width, 3), scale = random_values(3, 4),
                             norm = random_values(hidden, 5), y = random_values(rows * hidden, 6);
    HcSite site{{fn.data(), width, cols}, base, scale, iters, 1e-6f, 1e-20f};
    std::vector<float> pre(rows * streams), post(rows * streams), comb(rows * streams * streams);
    hc_coefficients({}, {x.data(), rows, cols}, site,
                    {{pre.data(), rows, streams},
                     {post.data(), rows, streams},
                     {comb.data(), rows, streams * streams}});
    const DeviceArray<float> dx(x), dfn(fn), dbase(base), dscale(scale), dnorm(norm), dy(y);
    const DeviceArray<float> dpre(rows * streams), dpost(rows * streams),
        dcomb(rows * streams * streams), dout(rows * hidden);
    site = {dfn.view(width, cols), dbase.span(), dscale.span(), iters, 1e-6f, 1e-20f};
    hc_coefficients(
        exec, dx.view(rows, cols), site,
        {dpre.view(rows, streams), dpost.view(rows, streams), dcomb.view(rows, streams * streams)});
    EXPECT_LT(test::max_abs_error(dpre.host(), pre), 5e-6);
    EXPECT_LT(test::max_abs_error(dpost.host(), post), 5e-6);
    EXPECT_LT(test::max_abs_error(dcomb.host(), comb), 5e-6);

    std::vector<float> u(size_t(rows * hidden));
    hc_collapse_norm({}, {x.data(), rows, cols}, {pre.data(), rows, streams}, norm, 1e-20f,
                     {u.data(), rows, hidden});
    const DeviceArray<float> exact_pre(pre), exact_post(post), exact_comb(comb);
    hc_collapse_norm(exec, dx.view(rows, cols), exact_pre.view(rows, streams), dnorm.span(), 1e-20f,
                     dout.view(rows, hidden));
    EXPECT_LT(test::max_rel_error(dout.host(), u), 2e-6);

    std::vector<float> expanded = x;
    hc_expand({}, {y.data(), rows, hidden}, {post.data(), rows, streams},
              {comb.data(), rows, streams * streams}, {expanded.data(), rows, cols});
    hc_expand(exec, dy.view(rows, hidden), exact_post.view(rows, streams),
              exact_comb.view(rows, streams * streams), dx.view(rows, cols));
    EXPECT_LT(test::max_rel_error(dx.host(), expanded), 2e-6);
  }
}

TEST_F(CudaOps, RouterSelectsTheSameExperts) {
  for (const auto& [experts, selected, rows] :
       {std::tuple<int64_t, int64_t, int64_t>{384, 6, 5}, {16, 2, 3}, {7, 7, 2}, {33, 1, 9}}) {
    std::vector<float> logits = random_values(rows * experts, 1, 3),
                       bias = random_values(experts, 2, 0.05f);
    // Equal scores, where the lower id goes first; beyond 20, where softplus is the identity.
    for (int64_t e = 0; e + 1 < experts && e < 4; ++e) {
      logits[size_t(e)] = 25;
      bias[size_t(e)] = 0.01f;
    }
    std::vector<int32_t> ids(size_t(rows * selected));
    std::vector<float> weights(ids.size());
    const RouterOptions options{true, 1.5f, 1};
    route({}, {logits.data(), rows, experts}, bias, options, {ids.data(), rows, selected},
          {weights.data(), rows, selected});
    const DeviceArray<float> dl(logits), db(bias), dw(rows * selected);
    const DeviceArray<int32_t> di(rows * selected);
    route(exec, dl.view(rows, experts), db.span(), options, di.view(rows, selected),
          dw.view(rows, selected));
    EXPECT_EQ(di.host(), ids);
    EXPECT_LT(test::max_rel_error(dw.host(), weights), 2e-6);
  }
}

TEST_F(CudaOps, LinearOverPlainFormats) {
  using Format = LinearWeight::Format;
  for (const int64_t in : {64, 250}) {
    const int64_t out = 70;
    std::mt19937 random(9);
    std::vector<float> f32 = random_values(in * out, 1);
    std::vector<uint16_t> f16, bf16;
    for (const float value : f32) {
      f16.push_back(f32_to_f16(value));
      bf16.push_back(f32_to_bf16(value));
    }
    std::vector<uint8_t> codes(size_t(in * out)), scales(size_t(out * ((in + 31) / 32)));
    for (uint8_t& code : codes) {
      code = uint8_t(random());
      if ((code & 0x7F) == 0x7F) code = 0;  // NaN
    }
    for (uint8_t& scale : scales) scale = uint8_t(120 + random() % 8);
    const DeviceArray<float> d32(f32);
    const DeviceArray<uint16_t> d16(f16), db(bf16);
    const DeviceArray<uint8_t> dc(codes), ds(scales);
    for (const auto& [format, host, device] :
         {std::tuple<Format, const void*, const void*>{Format::kF32, f32.data(), d32.data()},
          {Format::kF16, f16.data(), d16.data()},
          {Format::kBf16, bf16.data(), db.data()},
          {Format::kFp8Block32, codes.data(), dc.data()},
          {Format::kFp4Block32, codes.data(), dc.data()}})
      for (const int64_t rows : {1, 5, 70}) {
        LinearWeight w;
        w.format = format;
        w.in_features = in;
        w.out_features = out;
        w.data = host;
        w.scales = scales.data();
        const std::vector<float> x = random_values(rows * in, 3);
        std::vector<float> want(size_t(rows * out));
        linear({}, {x.data(), rows, in}, w, {want.data(), rows, out});
        w.data = device;
        w.scales = ds.data();
        const DeviceArray<float> dx(x), got(rows * out);
        linear(exec, dx.view(rows, in), w, got.view(rows, out));
        EXPECT_LT(test::max_rel_error(got.host(), want), 3e-6) << int(format) << " rows " << rows;
      }
  }
}

}  // namespace
}  // namespace onecard::ops
