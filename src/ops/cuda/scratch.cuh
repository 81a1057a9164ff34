// Cutting an op's scratch memory into parts.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "device/exec.h"

namespace onecard::ops::cuda {

class ScratchCutter {
 public:
  explicit ScratchCutter(const Exec& exec)
      : scratch_(exec.scratch), used_bytes_(DeviceScratch::kCounterBytes) {}

  unsigned* counters(int64_t count, const char* op) const {
    if (count * int64_t(sizeof(unsigned)) > DeviceScratch::kCounterBytes ||
        scratch_.data == nullptr)
      fail(op, count * int64_t(sizeof(unsigned)));
    return reinterpret_cast<unsigned*>(scratch_.data);
  }
  /// `count` elements, aligned to 256 bytes.
  template <typename T>
  T* take(int64_t count, const char* op) {
    const int64_t bytes = (count * int64_t(sizeof(T)) + 255) / 256 * 256;
    if (used_bytes_ + bytes > scratch_.bytes) fail(op, used_bytes_ + bytes);
    T* const part = reinterpret_cast<T*>(scratch_.data + used_bytes_);
    used_bytes_ += bytes;
    return part;
  }
  int64_t left_bytes() const { return scratch_.bytes - used_bytes_; }

 private:
  [[noreturn]] void fail(const char* op, int64_t needed) const {
    throw Error(ErrorCode::kResourceExhausted,
                std::string(op) + ": needs " + std::to_string(needed) + " bytes of scratch, has " +
                    std::to_string(scratch_.bytes));
  }
  DeviceScratch scratch_;
  int64_t used_bytes_;
};

}  // namespace onecard::ops::cuda
