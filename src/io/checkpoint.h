// A checkpoint directory, opened and checked as a whole: every shard exists, its header is sound,
// its length is exact, and every tensor is where the index says. Tensors are mapped, not read;
// nothing here knows what a tensor means. Immutable after open(): any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "tensor/dtype.h"

namespace onecard::io {

struct StoredTensor {
  std::string_view name;
  DType dtype = DType::kU8;
  std::span<const int64_t> shape;    // empty: a scalar
  std::span<const std::byte> bytes;  // in the mapping; aligned to nothing, so copy before casting
  const MappedFile* file = nullptr;
  int64_t offset_bytes = 0;  // of bytes[0] in the file

  /// True when the bytes happen to be aligned for T, so that it may be read in place.
  template <typename T>
  bool aligned_for() const {
    return reinterpret_cast<uintptr_t>(bytes.data()) % alignof(T) == 0;
  }
};

/// "BF16 [3, 4]"
std::string describe(const StoredTensor& tensor);
/// The one form of a complaint about a tensor that is there: file, tensor, expected and found.
std::string mismatch(const StoredTensor& tensor, std::string_view expected);

/// A further directory that supplies some tensors, for instance the engram tables of the original
/// checkpoint beside a quantised one. Only tensors whose name contains `name_part` are taken; they
/// replace those of the main directory.
struct ExtraDirectory {
  std::string path;
  std::string name_part;
};

class Checkpoint {
 public:
  /// Opens `directory`: the shards of model.safetensors.index.json, or without an index every
  /// *.safetensors in it. Of an extra directory, the shards that its index names for the wanted
  /// tensors (without an index: every *.safetensors). A shard that the main index names may also
  /// lie in an extra directory.
  /// Throws kNotFound (no such directory, nothing in it), kDataCorrupt or kIo, always naming file,
  /// tensor where there is one, expected and found bytes, and what would repair it.
  static Checkpoint open(const std::string& directory, std::span<const ExtraDirectory> extra = {});
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  /// Null when there is none. Pointers and names stay valid while the checkpoint lives.
  const StoredTensor* find(std::string_view name) const;
  /// As find(), but throws kDataCorrupt naming directory and tensor.
  const StoredTensor& at(std::string_view name) const;
  /// In the order of files and, inside each, of the bytes: the order in which to load.
  std::span<const StoredTensor> tensors() const;
  std::span<const MappedFile> files() const;
  const std::string& directory() const;
  int64_t total_bytes() const;  // of all tensors

  /// Reads a part of a tensor by position. Unlike touching `bytes`, a file that became shorter is
  /// an error (kIo) here and not a signal.
  static void read(const StoredTensor& tensor, int64_t offset_bytes, std::span<std::byte> out);
  /// Call when the tensor was copied: its pages may leave the page cache.
  static void drop_pages(const StoredTensor& tensor) { tensor.file->drop_pages(tensor.bytes); }

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace onecard::io
