// Attention, index scores and selections on the device against the plain CPU path.
#include "ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/device.h"
#include "cuda/random_exl3.h"
#include "ops/indexer.h"
#include "support/compare.h"

namespace onecard::ops {
namespace {

using test::DeviceArray;
using test::random_values;

std::vector<std::byte> packed_rows(KvFormat format, int64_t rows, int64_t dim, unsigned seed) {
  const std::vector<float> x = random_values(rows * dim, seed);
  std::vector<std::byte> bytes(size_t(rows * kv_row_bytes(format, dim)));
  pack_kv_rows({}, {x.data(), rows, dim}, {bytes.data(), kv_row_bytes(format, dim), dim, format});
  return bytes;
}

struct AttentionCase {
  int64_t heads, dim, window, chunk_begin, rows, groups, top_k, window_begin;
  KvFormat window_format, global_format;
};

class CudaAttention : public test::CudaTest, public testing::WithParamInterface<AttentionCase> {};

TEST_P(CudaAttention, EqualsThePlainPath) {
  const AttentionCase c = GetParam();
  const int64_t ring_rows = c.window + 3;
  const int64_t window_bytes = kv_row_bytes(c.window_format, c.dim);
  const int64_t global_bytes = kv_row_bytes(c.global_format, c.dim);
  const auto ring = packed_rows(c.window_format, ring_rows, c.dim, 1);
  const auto chunk = packed_rows(c.window_format, c.rows, c.dim, 2);
  const auto global = packed_rows(c.global_format, std::max<int64_t>(1, c.groups), c.dim, 3);
  const std::vector<float> q = random_values(c.rows * c.heads * c.dim, 4);
  const std::vector<float> sinks = random_values(c.heads, 5, 3);
  std::mt19937 random(6);
  std::vector<int32_t> ids(size_t(c.rows * std::max<int64_t>(1, c.top_k))), counts;
  for (int64_t t = 0; t < c.rows; ++t) {
    counts.push_back(int32_t(c.top_k == 0 ? 0 : t == 0 ? c.top_k : random() % (c.top_k + 1)));
    for (int64_t k = 0; k < c.top_k; ++k)
      ids[size_t(t * c.top_k + k)] = int32_t(random() % c.groups);
  }
  const auto keys = [&](const std::byte* r, const std::byte* k, const std::byte* g) {
    AttentionKeys all;
    all.ring = {r, window_bytes, c.dim, c.window_format};
    all.num_ring_rows = ring_rows;
    all.chunk = {k, window_bytes, c.dim, c.window_format};
    all.chunk_begin = c.chunk_begin;
    all.window = c.window;
    all.window_begin = c.window_begin;
    all.global = {g, global_bytes, c.dim, c.global_format};
    return all;
  };
  IndexLists lists{{ids.data(), c.rows, c.top_k}, counts};
  std::vector<float> want(q.size());
  attention({}, {q.data(), c.rows, c.heads * c.dim}, c.chunk_begin,
            keys(ring.data(), chunk.data(), global.data()), c.top_k > 0 ? &lists : nullptr, sinks,
            {want.data(), c.rows, c.heads * c.dim});

  const DeviceArray<std::byte> dring(ring), dchunk(chunk), dglobal(global);
  const DeviceArray<float> dq(q), dsinks(sinks), out(int64_t(q.size()));
  const DeviceArray<int32_t> dids(ids), dcounts(counts);
  lists = {{dids.data(), c.rows, c.top_k}, dcounts.span()};
  attention(exec, dq.view(c.rows, c.heads * c.dim), c.chunk_begin,
            keys(dring.data(), dchunk.data(), dglobal.data()), c.top_k > 0 ? &lists : nullptr,
            dsinks.span(), out.view(c.rows, c.heads * c.dim));
  EXPECT_LT(test::max_rel_error(out.host(), want), 5e-6);
}

constexpr auto kFp8 = KvFormat::kFp8Block32, kFp4 = KvFormat::kFp4Block16, kF32 = KvFormat::kF32;
INSTANTIATE_TEST_SUITE_P(
    All, CudaAttention,
    testing::Values(AttentionCase{4, 64, 8, 0, 5, 0, 0, 0, kFp8, kFp4},     // from the start
                    AttentionCase{4, 64, 8, 21, 3, 20, 6, 0, kFp8, kFp4},   // over the ring
                    AttentionCase{5, 33, 7, 40, 9, 30, 5, 38, kF32, kF32},  // odd, a late window
                    AttentionCase{20, 96, 16, 100, 2, 64, 40, 0, kFp8, kFp4},
                    AttentionCase{17, 512, 128, 300, 1, 256, 200, 0, kFp8, kFp4}));

struct IndexCase {
  int64_t heads, dim, rows, groups;
  KvFormat format;
  int64_t block_size, kept;  // kept 0: no candidates
};
class CudaIndexer : public test::CudaTest, public testing::WithParamInterface<IndexCase> {};

TEST_P(CudaIndexer, ScoresAndSelectsLikeThePlainPath) {
  const IndexCase c = GetParam();
  const int64_t bytes = kv_row_bytes(c.format, c.dim);
  const auto keys = packed_rows(c.format, c.groups, c.dim, 1);
  std::vector<float> q = random_values(c.rows * c.heads * c.dim, 2);
  fake_quantise({}, c.format, c.dim, {q.data(), c.rows, c.heads * c.dim});
  const std::vector<float> w = random_values(c.rows * c.heads, 3);
  std::vector<int64_t> visible;
  std::vector<int32_t> kept(size_t(c.rows * std::max<int64_t>(1, c.kept))), kept_counts;
  std::mt19937 random(4);
  for (int64_t t = 0; t < c.rows; ++t) {
    visible.push_back(std::max<int64_t>(0, c.groups - (c.rows - 1 - t)));
    const int64_t blocks = (visible.back() + c.block_size - 1) / c.block_size;
    std::vector<int32_t> all;
    for (int32_t b = 0; b < blocks; ++b) all.push_back(b);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(size_t(std::min<int64_t>(c.kept, blocks)));
    std::sort(all.begin(), all.end());
    std::copy(all.begin(), all.end(), kept.begin() + t * c.kept);
    kept_counts.push_back(t == 0 || int64_t(all.size()) == blocks ? kAllBlocks
                                                                  : int32_t(all.size()));
  }
  const int64_t columns = c.groups + 3;
  std::vector<float> want(size_t(c.rows * columns), -7.0f);
  IndexLists candidates{{kept.data(), c.rows, c.kept}, kept_counts};
  indexer_scores({}, {q.data(), c.rows, c.heads * c.dim}, {w.data(), c.rows, c.heads},
                 {keys.data(), bytes, c.dim, c.format}, visible, c.kept > 0 ? &candidates : nullptr,
                 c.block_size, {want.data(), c.rows, columns});
  const DeviceArray<std::byte> dkeys(keys);
  const DeviceArray<float> dq(q), dw(w);
  const DeviceArray<float> scores(std::vector<float>(want.size(), -7.0f));
  const DeviceArray<int64_t> dvisible(visible);
  const DeviceArray<int32_t> dkept(kept), dcounts(kept_counts);
  candidates = {{dkept.data(), c.rows, c.kept}, dcounts.span()};
  indexer_scores(exec, dq.view(c.rows, c.heads * c.dim), dw.view(c.rows, c.heads),
                 {dkeys.data(), bytes, c.dim, c.format}, dvisible.span(),
                 c.kept > 0 ? &candidates : nullptr, c.block_size, scores.view(c.rows, columns));
  const std::vector<float> got = scores.host();
  float largest = 0;
  for (const float value : want)
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(want[i]))
      ASSERT_EQ(got[i], want[i]) << i;
    else
      ASSERT_NEAR(got[i], want[i], 2e-6 * largest) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaIndexer,
                         testing::Values(IndexCase{3, 20, 3, 37, KvFormat::kF32, 4, 0},
                                         IndexCase{2, 32, 4, 50, KvFormat::kFp4Block32, 4, 5},
                                         IndexCase{8, 128, 3, 131, KvFormat::kFp4Block32, 8, 0},
                                         IndexCase{32, 128, 2, 1100, KvFormat::kFp4Block32, 8, 20},
                                         IndexCase{16, 128, 2, 77, KvFormat::kFp4Block32, 3, 4}));

class CudaSelect : public test::CudaTest {};

TEST_F(CudaSelect, TopKIsExact) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937 random(8);
  const int64_t n = 5000, rows = 6;
  std::vector<float> scores = random_values(rows * n, 9);
  for (int64_t g = 0; g < n; ++g) {
    scores[size_t(n + g)] = float(random() % 5);              // many equals
    scores[size_t(2 * n + g)] = g % 3 ? -inf : float(g % 7);  // most not selectable
    scores[size_t(3 * n + g)] = g % 2 ? 0.0f : -0.0f;         // zeros are equal
    scores[size_t(4 * n + g)] = g == 17 ? inf : g % 11 ? 1.0f + float(g) * 1e-7f : nan;
  }
  const std::vector<int64_t> visible{n, n - 1, n, 4097, n, 3};
  for (const int64_t k : {1, 7, 512, 2000}) {
    std::vector<int32_t> ids(size_t(rows * k), -5), counts(rows);
    select_top_k({}, {scores.data(), rows, n}, visible, {{ids.data(), rows, k}, counts});
    const DeviceArray<float> ds(scores);
    const DeviceArray<int64_t> dv(visible);
    const DeviceArray<int32_t> di(std::vector<int32_t>(ids.size(), -5)), dc(rows);
    select_top_k(exec, ds.view(rows, n), dv.span(), {di.view(rows, k), dc.span()});
    EXPECT_EQ(dc.host(), counts) << k;
    EXPECT_EQ(di.host(), ids) << k;

    const int64_t block_size = 8, blocks = (n + 7) / 8;
    std::vector<float> clean = scores;
    for (float& score : clean)
      if (std::isnan(score)) score = -1;
    std::vector<float> best(size_t(rows * blocks));
    std::fill(ids.begin(), ids.end(), -5);
    select_candidate_blocks({}, {clean.data(), rows, n}, visible, block_size,
                            {best.data(), rows, blocks}, {{ids.data(), rows, k}, counts});
    const DeviceArray<float> dclean(clean), dbest(rows * blocks);
    const DeviceArray<int32_t> block_ids(std::vector<int32_t>(ids.size(), -5));
    select_candidate_blocks(exec, dclean.view(rows, n), dv.span(), block_size,
                            dbest.view(rows, blocks), {block_ids.view(rows, k), dc.span()});
    EXPECT_EQ(dc.host(), counts) << k;
    EXPECT_EQ(block_ids.host(), ids) << k;
  }
}

}  // namespace
}  // namespace onecard::ops
