// Rows that go into a ring by position, and come back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/exec.h"

namespace onecard::ops {

/// The row of position p is ring row p % num_rows. Dense rows; borrows.
struct RowRing {
  std::byte* data = nullptr;
  int64_t num_rows = 1;
  int64_t row_bytes = 0;
};

/// Puts the rows of positions [first_position, first_position + num_rows) into the ring; of more
/// than it holds, the last.   rows: dense, apart from the ring.
void store_ring_rows(const Exec& exec, const std::byte* rows, int64_t first_position,
                     int64_t num_rows, const RowRing& ring);

/// The other way. Throws kInvalidArgument for more rows than the ring holds.
void load_ring_rows(const Exec& exec, const RowRing& ring, int64_t first_position, int64_t num_rows,
                    std::byte* rows);

/// Copies row t of `rows` (dense, of row_bytes) to to[t]; where that is null the row is left out.
/// The places are apart from each other and from the rows.
void scatter_rows(const Exec& exec, const std::byte* rows, int64_t row_bytes,
                  std::span<std::byte* const> to);

}  // namespace onecard::ops
