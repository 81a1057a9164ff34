// The store against a plain model of it: a list of everything that was put.
#include "engine/prefix_store.h"

#include <gtest/gtest.h>

#include <random>

namespace onecard::engine {
namespace {

constexpr int64_t kBlock = 4;

// Rows that tell which tokens they belong to: one byte a token, a hash of all up to it.
std::vector<std::byte> rows_of(const std::vector<int32_t>& tokens, int64_t begin, int64_t end) {
  std::vector<std::byte> rows;
  uint32_t hash = 17;
  for (int64_t i = 0; i < end; ++i) {
    hash = hash * 31 + uint32_t(tokens[size_t(i)]);
    if (i >= begin) rows.push_back(std::byte(hash >> 8));
  }
  return rows;
}

model::Snapshot snapshot_of(int64_t num_tokens, bool decoder = true) {
  model::Snapshot snapshot;
  snapshot.num_tokens = num_tokens;
  snapshot.has_decoder_windows = decoder;
  snapshot.bytes.resize(10, std::byte(num_tokens));
  return snapshot;
}

void put(PrefixStore& store, const std::vector<int32_t>& tokens, const std::string& salt = "",
         bool decoder = true) {
  store.put(tokens, salt, snapshot_of(int64_t(tokens.size()), decoder),
            [&](int64_t begin, int64_t end) { return rows_of(tokens, begin, end); });
}

bool any(const model::Snapshot&) { return true; }

// The length found, after comparing every row.
int64_t found(PrefixStore& store, const std::vector<int32_t>& tokens,
              const std::string& salt = "") {
  const PrefixStore::Prefix* const prefix = store.find(tokens, salt, any);
  if (prefix == nullptr) return 0;
  const model::Snapshot& snapshot = PrefixStore::snapshot(*prefix);
  EXPECT_EQ(snapshot.bytes[0], std::byte(snapshot.num_tokens));
  int64_t num_written = 0;
  PrefixStore::write_rows(
      *prefix, [&](int64_t begin, int64_t end, std::span<const std::byte> rows) {
        const auto expected = rows_of(tokens, begin, end);
        EXPECT_TRUE(std::equal(rows.begin(), rows.end(), expected.begin(), expected.end()));
        num_written += end - begin;
      });
  EXPECT_EQ(num_written, snapshot.num_tokens);
  return snapshot.num_tokens;
}

TEST(PrefixStore, FindsTheLongestExactPrefix) {
  PrefixStore store(kBlock, 1 << 20);
  EXPECT_EQ(found(store, {1, 2, 3}), 0);
  put(store, {1, 2, 3});
  put(store, {1, 2, 3, 4, 5, 6, 7, 8});
  put(store, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  EXPECT_EQ(found(store, {1, 2}), 0);
  EXPECT_EQ(found(store, {1, 2, 3}), 3);
  EXPECT_EQ(found(store, {1, 2, 3, 9, 9, 9, 9}), 3);
  EXPECT_EQ(found(store, {1, 2, 3, 4, 5, 6, 7, 8, 9}), 8);
  EXPECT_EQ(found(store, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), 10);
  EXPECT_EQ(found(store, {2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), 0);
  EXPECT_EQ(store.num_prefixes(), 3);
}

TEST(PrefixStore, SaltsAreApart) {
  PrefixStore store(kBlock, 1 << 20);
  put(store, {1, 2, 3, 4, 5}, "a");
  EXPECT_EQ(found(store, {1, 2, 3, 4, 5}, "a"), 5);
  EXPECT_EQ(found(store, {1, 2, 3, 4, 5}, ""), 0);
  EXPECT_EQ(found(store, {1, 2, 3, 4, 5}, "b"), 0);
}

TEST(PrefixStore, SkipsWhatIsNotUsable) {
  PrefixStore store(kBlock, 1 << 20);
  put(store, {1, 2, 3});
  put(store, {1, 2, 3, 4, 5}, "", /*decoder=*/false);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
  const auto* prefix = store.find(
      tokens, "", [](const model::Snapshot& snapshot) { return snapshot.has_decoder_windows; });
  ASSERT_NE(prefix, nullptr);
  EXPECT_EQ(PrefixStore::snapshot(*prefix).num_tokens, 3);
}

TEST(PrefixStore, BlocksAreSharedAndGoWithTheirLastPrefix) {
  PrefixStore store(kBlock, 1 << 20);
  std::vector<int32_t> tokens(40, 7);
  put(store, tokens);
  const int64_t alone = store.num_bytes();
  int64_t num_read = 0;
  std::vector<int32_t> longer = tokens;
  longer.insert(longer.end(), {1, 2, 3, 4, 5});
  store.put(longer, "", snapshot_of(45), [&](int64_t begin, int64_t end) {
    num_read += end - begin;
    return rows_of(longer, begin, end);
  });
  EXPECT_EQ(num_read, 5);
  EXPECT_LT(store.num_bytes() - alone, alone / 2);
  put(store, longer);  // known already
  EXPECT_EQ(store.num_prefixes(), 2);
}

TEST(PrefixStore, BeyondTheBudgetTheLongestUnusedGo) {
  const std::vector<int32_t> a = {1, 1, 1, 1, 1}, b = {2, 2, 2, 2, 2}, c = {3, 3, 3, 3, 3};
  PrefixStore probe(kBlock, 1 << 20);
  put(probe, a);
  PrefixStore store(kBlock, 2 * probe.num_bytes());
  put(store, a);
  put(store, b);
  EXPECT_EQ(found(store, a), 5);  // used: b is now the oldest
  put(store, c);
  EXPECT_EQ(found(store, b), 0);
  EXPECT_EQ(found(store, a), 5);
  EXPECT_EQ(found(store, c), 5);
  PrefixStore tiny(kBlock, 1);
  put(tiny, a);
  EXPECT_EQ(tiny.num_prefixes(), 0);
  EXPECT_EQ(tiny.num_bytes(), 0);
}

TEST(PrefixStore, ALongChainOfBlocksEndsWell) {
  PrefixStore store(1, 1 << 30);
  std::vector<int32_t> tokens(300000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(i % 1000);
  store.put(tokens, "", snapshot_of(int64_t(tokens.size())),
            [](int64_t begin, int64_t end) { return std::vector<std::byte>(size_t(end - begin)); });
  EXPECT_EQ(store.num_prefixes(), 1);
}

TEST(PrefixStore, AgreesWithAListOfEverything) {
  std::mt19937 random(11);
  PrefixStore store(kBlock, 1 << 24);
  std::vector<std::vector<int32_t>> all;
  for (int round = 0; round < 400; ++round) {
    // Two letters and short words: prefixes meet and part all the time.
    std::vector<int32_t> tokens;
    if (!all.empty() && random() % 2 == 0) {
      tokens = all[random() % all.size()];
      tokens.resize(random() % (tokens.size() + 1));
    }
    for (size_t i = 1 + random() % 12; i > 0; --i) tokens.push_back(int32_t(random() % 2));
    int64_t expected = 0;
    for (const auto& known : all)
      if (known.size() <= tokens.size() && std::equal(known.begin(), known.end(), tokens.begin()))
        expected = std::max(expected, int64_t(known.size()));
    ASSERT_EQ(found(store, tokens), expected) << "round " << round;
    put(store, tokens);
    all.push_back(tokens);
  }
}

}  // namespace
}  // namespace onecard::engine
