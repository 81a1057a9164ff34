// Rows of large tables, read from disk by row: a table is never loaded whole, and the calling
// thread neither waits for the disk nor faults a page. Who calls: the engine thread, as soon as
// token ids are known; it takes the rows when layer 1 (or 14) needs them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "io/file.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace onecard::io {

/// Where a table's rows are. kF32, kF16, kBf16: plain. kF8E4m3: one e8m0 scale for every
/// width / num_scales consecutive values of a row, in a second array.
struct RowTable {
  std::string name;
  int64_t num_rows = 0;
  int64_t width = 0;  // values of a row
  DType dtype = DType::kF32;
  std::shared_ptr<const ByteSource> values = nullptr;
  int64_t values_offset_bytes = 0;
  int64_t num_scales = 0;  // of a row; 0: no scales
  std::shared_ptr<const ByteSource> scales = nullptr;
  int64_t scales_offset_bytes = 0;
};

/// The table `prefix`.weight of the checkpoint, with `prefix`.scale where it is kF8E4m3. Opens its
/// own descriptors. Throws kDataCorrupt when a tensor is missing or the shapes do not fit together,
/// kUnsupported for another dtype.
RowTable open_row_table(const Checkpoint& checkpoint, const std::string& prefix);

class EngramReader {
 public:
  virtual ~EngramReader() = default;

  /// Rows that were asked for. Move-only; destroying it waits for the reads that have begun and
  /// drops the others.
  class Request {
   public:
    class State;
    Request() = default;
    explicit Request(std::shared_ptr<State> state) : state_(std::move(state)) {}
    ~Request();
    Request(Request&&) noexcept;
    Request& operator=(Request&&) noexcept;

    bool valid() const { return state_ != nullptr; }
    /// All rows are there, or a read failed. Never waits.
    bool ready() const;
    /// Waits until ready(). Throws what the first failed read threw (kIo): `out` is then
    /// unspecified.
    void wait() const;

   private:
    std::shared_ptr<State> state_;
  };

  /// Asks for rows of one table: out[i,:] = row row_ids[i], decoded to f32. Equal ids are read
  /// once. `out` is [row_ids.size(), width] and has to stay until the request is ready or
  /// destroyed; row_ids is copied. Throws kInvalidArgument on a bad table index, row id or shape.
  virtual Request submit(int64_t table_idx, std::span<const int64_t> row_ids, View<float> out) = 0;

  virtual std::span<const RowTable> tables() const = 0;
};

/// Reads with `num_threads` threads, each one row (or run of neighbouring rows) at a time.
std::unique_ptr<EngramReader> make_pread_engram_reader(std::vector<RowTable> tables,
                                                       int num_threads);

}  // namespace onecard::io
