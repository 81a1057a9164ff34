#include "ops/ring_rows.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "device/memory.h"
#include "ops/cuda/kernels.h"

namespace onecard::ops {
namespace {

/// Calls piece(ring row, first of the rows, their number) for at most two runs of ring rows.
template <typename Piece>
void each_piece(int64_t first_position, int64_t num_rows, int64_t ring_rows, const Piece& piece) {
  const int64_t begin = first_position % ring_rows;
  const int64_t up_to_end = std::min(num_rows, ring_rows - begin);
  piece(begin, int64_t{0}, up_to_end);
  if (num_rows > up_to_end) piece(int64_t{0}, up_to_end, num_rows - up_to_end);
}

}  // namespace

void store_ring_rows(const Exec& exec, const std::byte* rows, int64_t first_position,
                     int64_t num_rows, const RowRing& ring) {
  const int64_t skipped = std::max<int64_t>(0, num_rows - ring.num_rows);
  each_piece(first_position + skipped, num_rows - skipped, ring.num_rows,
             [&](int64_t ring_row, int64_t first, int64_t count) {
               queue_copy(exec, ring.data + ring_row * ring.row_bytes,
                          rows + (skipped + first) * ring.row_bytes,
                          size_t(count * ring.row_bytes));
             });
}

void load_ring_rows(const Exec& exec, const RowRing& ring, int64_t first_position, int64_t num_rows,
                    std::byte* rows) {
  require(num_rows <= ring.num_rows, ErrorCode::kInvalidArgument,
          "load_ring_rows: the ring holds fewer rows");
  each_piece(first_position, num_rows, ring.num_rows,
             [&](int64_t ring_row, int64_t first, int64_t count) {
               queue_copy(exec, rows + first * ring.row_bytes,
                          ring.data + ring_row * ring.row_bytes, size_t(count * ring.row_bytes));
             });
}

void scatter_rows(const Exec& exec, const std::byte* rows, int64_t row_bytes,
                  std::span<std::byte* const> to) {
  if (exec.backend == Backend::kCuda) return cuda::scatter_rows(exec, rows, row_bytes, to);
  for (size_t t = 0; t < to.size(); ++t)
    if (to[t] != nullptr)
      std::memcpy(to[t], rows + int64_t(t) * row_bytes, static_cast<size_t>(row_bytes));
}

}  // namespace onecard::ops
