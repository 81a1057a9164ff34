// Writes a checkpoint: shards of safetensors and their index. Tensors are declared first (names,
// dtypes, shapes: they make the headers), then their bytes are streamed in any order of tensors, so
// that memory holds one tensor at most. Nothing is visible under its final name before finish().
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/dtype.h"

namespace onecard::io {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t size_bytes() const;  // throws kInvalidArgument when the product overflows
};

/// One shard: file name and tensors in the order in which the file holds them.
struct ShardSpec {
  std::string file;
  std::vector<TensorSpec> tensors;
};

/// Cuts `tensors` into shards of at most `shard_bytes` each (one tensor alone may be larger), in
/// order. Tensors of one group stay in one shard: the group is the name up to the last '.'
/// (`layers.0.ffn.experts.3.w1`), or what `group_of` says. One shard is called model.safetensors,
/// several model-00001-of-0000N.safetensors.
std::vector<ShardSpec> plan_shards(std::vector<TensorSpec> tensors, int64_t shard_bytes,
                                   std::string_view (*group_of)(std::string_view name) = nullptr);

/// The bytes before a shard's data: length, JSON, spaces up to a multiple of 8.
std::string safetensors_header(std::span<const TensorSpec> tensors,
                               std::span<const std::pair<std::string, std::string>> metadata = {});

class SafetensorsWriter {
 public:
  /// Creates `directory` when there is none, and a temporary file for each shard in it. Several
  /// shards (or one not called model.safetensors) get model.safetensors.index.json. Throws
  /// kInvalidArgument on a duplicate name or file, kIo when a file cannot be made.
  SafetensorsWriter(std::string directory, std::vector<ShardSpec> shards);
  /// Removes the temporary files unless finish() was reached.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The next bytes of the tensor, which may come in pieces. Throws kNotFound for an undeclared
  /// tensor, kInvalidArgument beyond its size, kIo (disk full and the like).
  void append(std::string_view name, std::span<const std::byte> bytes);

  /// Checks that every tensor got all its bytes (else kInvalidArgument), flushes to disk, renames
  /// the shards and then the index to their names.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onecard::io
