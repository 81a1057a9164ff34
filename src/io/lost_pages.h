// What becomes of mapped files that shrink while they are in use. Touching a page that is no longer
// there raises SIGBUS, which would end the process without a word. With the guard, such a page and
// all behind it read as zeros and the loss is noted; whoever has computed with mapped bytes asks
// afterwards and throws the result away.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace onecard::io {

/// Handles SIGBUS from now on, for the whole process; a SIGBUS that no mapped file explains still
/// ends it. Call once, before any file is mapped.
void guard_lost_pages();

/// Throws kDevice, naming the file, when a page of a file that is still mapped was lost: what was
/// computed from it is wrong, and so is all that will be. One atomic read when all is well. Any
/// thread.
void check_lost_pages();

// For MappedFile.
/// Watches [bytes) of `path`; nothing happens where more files are mapped than can be watched.
void watch_pages(std::span<const std::byte> bytes, const std::string& path);
/// Before it is unmapped.
void unwatch_pages(std::span<const std::byte> bytes) noexcept;

}  // namespace onecard::io
