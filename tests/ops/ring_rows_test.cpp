#include "ops/ring_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "base/error.h"
#include "ops/positions.h"

namespace onecard::ops {
namespace {

constexpr int64_t kRowBytes = 3;

/// The row of a position.
std::vector<std::byte> row_of(int64_t position) {
  return {std::byte(position), std::byte(position * 7), std::byte(100 + position)};
}

std::vector<std::byte> rows_of(int64_t first_position, int64_t num_rows) {
  std::vector<std::byte> rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    const std::vector<std::byte> row = row_of(first_position + i);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

// Against a table of what each ring row holds, for every place to begin and every number of rows,
// more than the ring has among them.
TEST(RingRows, EachPositionHasItsPlaceAndComesBack) {
  constexpr int64_t kRing = 5;
  for (int64_t first = 0; first < 12; ++first) {
    for (int64_t count = 0; count <= 12; ++count) {
      std::vector<std::byte> memory(size_t(kRing * kRowBytes), std::byte{0xEE});
      const RowRing ring{memory.data(), kRing, kRowBytes};
      const std::vector<std::byte> rows = rows_of(first, count);
      store_ring_rows({}, rows.data(), first, count, ring);
      std::map<int64_t, int64_t> holds;  // ring row -> the last position put there
      for (int64_t p = first; p < first + count; ++p) holds[p % kRing] = p;
      for (int64_t r = 0; r < kRing; ++r) {
        const std::vector<std::byte> want =
            holds.count(r) > 0 ? row_of(holds[r]) : std::vector(size_t(kRowBytes), std::byte{0xEE});
        EXPECT_TRUE(std::equal(want.begin(), want.end(), memory.begin() + r * kRowBytes))
            << first << " " << count << " " << r;
      }
      const int64_t kept = std::min(count, kRing);
      std::vector<std::byte> back(size_t(kept * kRowBytes));
      load_ring_rows({}, ring, first + count - kept, kept, back.data());
      EXPECT_EQ(back, rows_of(first + count - kept, kept));
    }
  }
}

TEST(RingRows, NoMoreComeBackThanThereAre) {
  std::vector<std::byte> memory(6);
  EXPECT_THROW(load_ring_rows({}, {memory.data(), 2, 3}, 0, 3, memory.data()), Error);
}

TEST(Positions, CountAndVisibleGroups) {
  std::vector<int64_t> out(4);
  count_up({}, 6, 2, out);
  EXPECT_EQ(out, (std::vector<int64_t>{6, 8, 10, 12}));
  // The group of tokens 4 and 5 is seen from token 5 on.
  visible_groups({}, 3, 2, out);
  EXPECT_EQ(out, (std::vector<int64_t>{2, 2, 3, 3}));
  visible_groups({}, 0, 1, out);
  EXPECT_EQ(out, (std::vector<int64_t>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace onecard::ops
