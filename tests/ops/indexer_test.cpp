#include "ops/indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu_isas.h"
#include "support/compare.h"

namespace onecard::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Lists {
  Lists(int64_t rows, int64_t most) : ids(size_t(rows * most)), counts(size_t(rows)), cols(most) {}
  IndexLists view() { return {{ids.data(), int64_t(counts.size()), cols}, counts}; }
  std::vector<int32_t> row(int64_t t) {
    const auto begin = ids.begin() + t * cols;
    return {begin, begin + std::max(0, counts[size_t(t)])};
  }
  std::vector<int32_t> ids, counts;
  int64_t cols;
};

/// By sorting: highest first, equal ones by index; then ascending.
std::vector<int32_t> sorted_top_k(const std::vector<float>& scores, int64_t n, int64_t k) {
  std::vector<int32_t> order;
  for (int64_t g = 0; g < n; ++g)
    if (scores[size_t(g)] > -kInf) order.push_back(int32_t(g));
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return scores[size_t(a)] > scores[size_t(b)]; });
  order.resize(std::min<size_t>(order.size(), size_t(k)));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(SelectTopK, EqualsSortingAlsoWithTies) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto n = int64_t(random() % 300);
    const auto k = int64_t(1 + random() % 40);
    std::vector<float> scores(size_t(n) + 1);
    for (float& score : scores) {
      const auto kind = random() % 6;
      score = kind == 0   ? 0.0f
              : kind == 1 ? -0.0f
              : kind == 2 ? -kInf
              : kind == 3 ? float(int(random() % 5)) - 2  // many ties
                          : float(int(random() % 2001) - 1000) * 1e-3f;
    }
    Lists got(1, k);
    const std::vector<int64_t> visible{n};
    select_top_k({}, View<const float>(scores.data(), 1, n), visible, got.view());
    EXPECT_EQ(got.row(0), sorted_top_k(scores, n, k)) << "round " << round;
  }
}

TEST(SelectTopK, NotANumberIsNeverSelected) {
  const std::vector<float> scores{1, std::nanf(""), 3, -std::nanf(""), 2, 0};
  Lists got(1, 3);
  select_top_k({}, View<const float>(scores.data(), 1, 6), std::vector<int64_t>{6}, got.view());
  EXPECT_EQ(got.row(0), (std::vector<int32_t>{0, 2, 4}));
}

TEST(SelectCandidateBlocks, KeepsTheNewestBlockAndTheBestOthers) {
  // Blocks of 2: maxima 5, 1, 9, 3, and the newest (one visible group) is the worst.
  const std::vector<float> scores{5, 0, 1, -3, 9, 8, 3, 3, -7, 100};
  std::vector<float> scratch(8);
  Lists got(1, 3);
  select_candidate_blocks({}, View<const float>(scores.data(), 1, 10), std::vector<int64_t>{9}, 2,
                          View<float>(scratch.data(), 1, 8), got.view());
  EXPECT_EQ(got.row(0), (std::vector<int32_t>{0, 2, 4}));
  Lists all(1, 5);
  select_candidate_blocks({}, View<const float>(scores.data(), 1, 10), std::vector<int64_t>{9}, 2,
                          View<float>(scratch.data(), 1, 8), all.view());
  EXPECT_EQ(all.counts[0], kAllBlocks);
}

struct Case {
  int64_t rows, heads, dim, groups;
  KvFormat format;
};

TEST(IndexerScores, EqualsTheFormulaOnEveryIsaAndAnyThreads) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  ThreadPool pool(3);
  for (const Case& c :
       {Case{1, 1, 5, 1, KvFormat::kF32}, Case{3, 4, 32, 130, KvFormat::kFp4Block32},
        Case{40, 8, 24, 300, KvFormat::kF32}, Case{17, 5, 64, 257, KvFormat::kFp4Block32}}) {
    const auto noise = [&](int64_t size) {
      std::vector<float> values(static_cast<size_t>(size));
      for (float& value : values) value = normal(random);
      return values;
    };
    const std::vector<float> q = noise(c.rows * c.heads * c.dim), w = noise(c.rows * c.heads);
    const std::vector<float> raw = noise(c.groups * c.dim);
    const int64_t bytes = kv_row_bytes(c.format, c.dim);
    std::vector<std::byte> packed(size_t(c.groups * bytes));
    const KvRows keys{packed.data(), bytes, c.dim, c.format};
    pack_kv_rows({}, View<const float>(raw.data(), c.groups, c.dim), keys);
    std::vector<float> key(raw.size());
    unpack_kv_rows({}, as_const(keys), View<float>(key.data(), c.groups, c.dim));
    std::vector<int64_t> visible;
    Lists blocks(c.rows, 4);
    for (int64_t t = 0; t < c.rows; ++t) {
      visible.push_back(std::max<int64_t>(0, c.groups - 2 * (c.rows - 1 - t)));
      blocks.counts[size_t(t)] = t % 3 == 0 ? kAllBlocks : 2;
      blocks.ids[size_t(4 * t)] = 0;
      blocks.ids[size_t(4 * t + 1)] = 15;  // of 8: groups 120..127, around a tile's end
    }
    for (const bool masked : {false, true}) {
      for (const cpu::Isa isa : test::cpu_isas()) {
        std::vector<float> scores(size_t(c.rows * c.groups));
        const IndexLists kept = blocks.view();
        indexer_scores({.isa = isa, .pool = &pool},
                       View<const float>(q.data(), c.rows, c.heads * c.dim),
                       View<const float>(w.data(), c.rows, c.heads), as_const(keys), visible,
                       masked ? &kept : nullptr, 8, View<float>(scores.data(), c.rows, c.groups));
        for (int64_t t = 0; t < c.rows; ++t) {
          for (int64_t g = 0; g < visible[size_t(t)]; ++g) {
            const float got = scores[size_t(t * c.groups + g)];
            const bool in = !masked || t % 3 == 0 || g < 8 || (g >= 120 && g < 128);
            if (!in) {
              EXPECT_EQ(got, -kInf) << t << " " << g;
              continue;
            }
            double want = 0, size = 0;
            for (int64_t h = 0; h < c.heads; ++h) {
              double dot = 0;
              for (int64_t i = 0; i < c.dim; ++i) {
                const double product =
                    double(q[size_t((t * c.heads + h) * c.dim + i)]) * key[size_t(g * c.dim + i)];
                dot += product;
                size += std::fabs(product * w[size_t(t * c.heads + h)]);
              }
              want += w[size_t(t * c.heads + h)] * std::max(0.0, dot);
            }
            const double scale = 1 / std::sqrt(double(c.heads * c.dim));
            // f32 sums: an error of at most (products / 8 lanes + a few) roundings of what is
            // summed
            const double bound = scale * size * (double(c.dim) / 8 + 8) * 6e-8;
            EXPECT_NEAR(got, want * scale, bound + 1e-30) << t << " " << g;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace onecard::ops
