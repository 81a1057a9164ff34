// Files: an owned descriptor read by position, and a read-only mapping. Both name the file in every
// error. Safe to read from several threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace onecard::io {

/// Bytes that can be read by position. The seam at which tests put faults in.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `out` with the bytes from `offset_bytes` on. Throws kIo when the read fails or the file
  /// ends first (it became shorter since it was checked), naming the file and both counts.
  virtual void read_exact(int64_t offset_bytes, std::span<std::byte> out) const = 0;
};

enum class Access {
  kSequential,
  kRandom,  // no read-ahead: rows of large tables
};

/// Owns one descriptor, opened for reading. Move-only.
class File final : public ByteSource {
 public:
  /// Throws kNotFound when there is no such file, kIo when it cannot be opened or is no regular
  /// file.
  static File open(const std::string& path, Access access = Access::kSequential);
  ~File() override { close(); }
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  void read_exact(int64_t offset_bytes, std::span<std::byte> out) const override;
  /// As of now: a file may change while it is open.
  int64_t size_bytes() const;
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }  // borrowed

 private:
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  void close() noexcept;

  std::string path_;
  int descriptor_ = -1;
};

/// The whole of a file, mapped read-only. Move-only. Pages come from the disk when they are first
/// touched, so hot threads copy first or read by position instead. When a
/// mapped file becomes shorter, touching the lost pages raises SIGBUS: see lost_pages.h.
class MappedFile {
 public:
  static MappedFile open(const std::string& path);
  ~MappedFile() { unmap(); }
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }
  const File& file() const { return file_; }
  const std::string& path() const { return file_.path(); }

  /// Throws kIo when the file no longer has the size it was mapped with.
  void check_unchanged() const;
  /// Tells the kernel that the pages wholly inside `part` (of bytes()) will not be read again soon,
  /// so that a load does not fill memory with what was copied already. Advice only.
  void drop_pages(std::span<const std::byte> part) const;

 private:
  explicit MappedFile(File file) : file_(std::move(file)) {}
  void unmap() noexcept;

  File file_;
  std::span<const std::byte> bytes_;
};

/// The whole content, for small files (configuration). Throws kDataCorrupt beyond `limit_bytes`,
/// and as File::open does.
std::string read_text_file(const std::string& path, int64_t limit_bytes);

/// Writes `content` to `path` so that a reader sees the old file or the new one, never a part: a
/// temporary file beside it, flushed to disk, then renamed. Throws kIo.
void write_file_atomically(const std::string& path, std::string_view content);

}  // namespace onecard::io
