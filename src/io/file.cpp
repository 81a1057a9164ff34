#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "io/lost_pages.h"

namespace onecard::io {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw Error(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
              path + ": " + what + ": " + std::generic_category().message(error));
}

}  // namespace

File File::open(const std::string& path, Access access) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "cannot open", errno);
  File file(path, descriptor);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail(path, "cannot examine", errno);
  if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::kIo, path + ": is not a regular file");
  if (access == Access::kRandom) ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);
  return file;
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);  // what was ours is closed with `other`
  return *this;
}

void File::close() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);  // read only: nothing can be lost
}

void File::read_exact(int64_t offset_bytes, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(descriptor_, out.data() + done, out.size() - done,
                                off_t(offset_bytes + int64_t(done)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw Error(ErrorCode::kIo, path_ + ": cannot read " + std::to_string(out.size()) +
                                      " bytes at byte " + std::to_string(offset_bytes) + ": " +
                                      std::generic_category().message(errno));
    if (got == 0)
      throw Error(ErrorCode::kIo, path_ + ": the file ends too early: expected " +
                                      std::to_string(out.size()) + " bytes at byte " +
                                      std::to_string(offset_bytes) + ", found " +
                                      std::to_string(done));
    done += size_t(got);
  }
}

int64_t File::size_bytes() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail(path_, "cannot examine", errno);
  return status.st_size;
}

MappedFile MappedFile::open(const std::string& path) {
  MappedFile mapped(File::open(path));
  const int64_t size = mapped.file_.size_bytes();
  if (size == 0) return mapped;
  void* address =
      ::mmap(nullptr, size_t(size), PROT_READ, MAP_SHARED, mapped.file_.descriptor(), 0);
  if (address == MAP_FAILED) fail(path, "cannot map", errno);
  mapped.bytes_ = {static_cast<const std::byte*>(address), size_t(size)};
  watch_pages(mapped.bytes_, path);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : file_(std::move(other.file_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);  // what was ours is unmapped with `other`
  return *this;
}

void MappedFile::unmap() noexcept {
  if (bytes_.empty()) return;
  unwatch_pages(bytes_);
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::check_unchanged() const {
  const int64_t size = file_.size_bytes();
  if (size != int64_t(bytes_.size()))
    throw Error(ErrorCode::kIo, path() + ": the file changed while in use: expected " +
                                    std::to_string(bytes_.size()) + " bytes, found " +
                                    std::to_string(size));
}

void MappedFile::drop_pages(std::span<const std::byte> part) const {
  const auto page = size_t(::sysconf(_SC_PAGESIZE));
  const auto offset = size_t(part.data() - bytes_.data());
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + part.size()) / page * page;
  if (begin >= end) return;
  // Pages that are still mapped cannot leave the page cache, so unmap them from this process first.
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
  ::posix_fadvise(file_.descriptor(), off_t(begin), off_t(end - begin), POSIX_FADV_DONTNEED);
}

std::string read_text_file(const std::string& path, int64_t limit_bytes) {
  const File file = File::open(path);
  const int64_t size = file.size_bytes();
  if (size > limit_bytes)
    throw Error(ErrorCode::kDataCorrupt, path + ": expected at most " +
                                             std::to_string(limit_bytes) + " bytes, found " +
                                             std::to_string(size));
  std::string text(size_t(size), '\0');
  file.read_exact(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_file_atomically(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp";
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) fail(temporary, "cannot create", errno);
  size_t done = 0;
  int error = 0;
  while (done < content.size() && error == 0) {
    const ssize_t wrote = ::write(descriptor, content.data() + done, content.size() - done);
    if (wrote >= 0)
      done += size_t(wrote);
    else if (errno != EINTR)
      error = errno;
  }
  if (error == 0 && ::fsync(descriptor) != 0) error = errno;
  if (::close(descriptor) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    throw Error(ErrorCode::kIo, path + ": cannot write: " + std::generic_category().message(error));
  }
}

}  // namespace onecard::io
