#include "ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "ops/cpu_isas.h"
#include "support/compare.h"

namespace onecard::ops {
namespace {

struct Case {
  int64_t heads, dim, window, chunk_begin, rows, groups, top_k, window_begin;
  KvFormat window_format, global_format;
};

class Attention : public testing::TestWithParam<Case> {};

TEST_P(Attention, EqualsTheFormula) {
  const Case c = GetParam();
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto noise = [&](int64_t size) {
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = normal(random);
    return values;
  };
  const auto pack = [&](KvFormat format, const std::vector<float>& x, std::vector<std::byte>& out) {
    const int64_t bytes = kv_row_bytes(format, c.dim), rows = int64_t(x.size()) / c.dim;
    out.resize(size_t(rows * bytes));
    const KvRows packed{out.data(), bytes, c.dim, format};
    pack_kv_rows({}, View<const float>(x.data(), rows, c.dim), packed);
    return as_const(packed);
  };
  const auto values = [&](const ConstKvRows& rows, int64_t count) {
    std::vector<float> out(size_t(count * c.dim));
    unpack_kv_rows({}, rows, View<float>(out.data(), count, c.dim));
    return out;
  };

  const int64_t num_positions = c.chunk_begin + c.rows;
  const int64_t num_ring_rows = c.window + 3;
  std::vector<std::byte> all_bytes, global_bytes, ring_bytes;
  const ConstKvRows all = pack(c.window_format, noise(num_positions * c.dim), all_bytes);
  const ConstKvRows global = pack(c.global_format, noise(c.groups * c.dim), global_bytes);
  const std::vector<float> all_values = values(all, num_positions);
  const std::vector<float> global_values = values(global, c.groups);
  // The ring before the chunk: each position at its place, older ones overwritten.
  ring_bytes.resize(size_t(num_ring_rows * all.stride_bytes));
  for (int64_t p = 0; p < c.chunk_begin; ++p)
    std::copy_n(all.row(p), all.stride_bytes,
                ring_bytes.data() + p % num_ring_rows * all.stride_bytes);
  AttentionKeys keys;
  keys.ring = {ring_bytes.data(), all.stride_bytes, c.dim, c.window_format};
  keys.num_ring_rows = num_ring_rows;
  keys.chunk = {all.row(c.chunk_begin), all.stride_bytes, c.dim, c.window_format};
  keys.chunk_begin = c.chunk_begin;
  keys.window = c.window;
  keys.window_begin = c.window_begin;
  keys.global = global;

  const std::vector<float> q = noise(c.rows * c.heads * c.dim), sinks = noise(c.heads);
  std::vector<int32_t> ids(size_t(c.rows * c.top_k)), counts(size_t(c.rows));
  for (int64_t t = 0; t < c.rows; ++t) {
    counts[size_t(t)] = int32_t(t % (c.top_k + 1));
    for (int64_t i = 0; i < counts[size_t(t)]; ++i)
      ids[size_t(t * c.top_k + i)] = int32_t((i * 7 + t) % c.groups);
  }
  const IndexLists selected{{ids.data(), c.rows, c.top_k}, counts};

  ThreadPool pool(3);
  for (const cpu::Isa isa : test::cpu_isas()) {
    std::vector<float> out(q.size());
    attention({.isa = isa, .pool = &pool}, View<const float>(q.data(), c.rows, c.heads * c.dim),
              c.chunk_begin, keys, c.top_k > 0 ? &selected : nullptr, sinks,
              View<float>(out.data(), c.rows, c.heads * c.dim));
    std::vector<float> want(q.size());
    for (int64_t t = 0; t < c.rows; ++t) {
      const int64_t position = c.chunk_begin + t;
      std::vector<const float*> rows;
      for (int64_t p = std::max({c.window_begin, position - c.window + 1, int64_t{0}});
           p <= position; ++p)
        rows.push_back(&all_values[size_t(p * c.dim)]);
      for (int64_t i = 0; i < counts[size_t(t)]; ++i)
        rows.push_back(&global_values[size_t(ids[size_t(t * c.top_k + i)] * c.dim)]);
      for (int64_t h = 0; h < c.heads; ++h) {
        const size_t at = size_t((t * c.heads + h) * c.dim);
        double denominator = std::exp(double(sinks[size_t(h)]));
        std::vector<double> sum(size_t(c.dim), 0.0);
        for (const float* row : rows) {
          double dot = 0;
          for (int64_t i = 0; i < c.dim; ++i) dot += double(q[at + size_t(i)]) * row[i];
          const double weight = std::exp(dot / std::sqrt(double(c.dim)));
          denominator += weight;
          for (int64_t i = 0; i < c.dim; ++i) sum[size_t(i)] += weight * row[i];
        }
        for (int64_t i = 0; i < c.dim; ++i)
          want[at + size_t(i)] = float(sum[size_t(i)] / denominator);
      }
    }
    // Logits up to about 5 carry (dim / 8 + 8) f32 roundings into the exponent; the weighted sum
    // adds one a row.
    const double roundings = 5 * (double(c.dim) / 8 + 8) + double(c.window + c.top_k);
    EXPECT_LE(test::max_abs_error(out, want), roundings * 4 * 6e-8) << cpu::isa_name(isa);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , Attention,
    testing::Values(Case{1, 4, 1, 0, 1, 1, 0, 0, KvFormat::kF32, KvFormat::kF32},
                    Case{3, 20, 5, 13, 19, 9, 4, 0, KvFormat::kF32, KvFormat::kF32},
                    Case{4, 64, 8, 100, 40, 30, 6, 0, KvFormat::kFp8Block32, KvFormat::kFp4Block16},
                    Case{2, 128, 33, 5, 3, 300, 130, 0, KvFormat::kFp8Block32,
                         KvFormat::kFp4Block16},
                    Case{2, 32, 16, 40, 20, 9, 4, 40, KvFormat::kFp8Block32, KvFormat::kFp4Block16},
                    Case{5, 40, 2, 7, 64, 3, 3, 0, KvFormat::kF32, KvFormat::kF32},
                    Case{5, 1044, 11, 20, 4, 40, 18, 0, KvFormat::kF32, KvFormat::kF32}));

TEST(AttentionContract, RefusesBadShapes) {
  std::vector<float> q(8), out(8), sinks(3);
  EXPECT_THROW(attention({}, View<const float>(q.data(), 1, 8), 0, {}, nullptr, sinks,
                         View<float>(out.data(), 1, 8)),
               Error);
}

}  // namespace
}  // namespace onecard::ops
