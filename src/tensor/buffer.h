// Owned memory of a fixed size, aligned to 64 bytes, in a named kind of memory. Move-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "device/memory.h"
#include "tensor/view.h"

namespace onecard {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  /// `size` elements, zeroed; 64 readable bytes follow the last one, so that wide loads may run
  /// over the end. The host may touch elements of host memory only.
  explicit Buffer(int64_t size, Memory memory = Memory::kHost)
      : data_(static_cast<T*>(allocate_memory(memory, size_t(size) * sizeof(T) + 64)),
              Free{memory}),
        size_(size) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  std::span<T> span() { return {data(), size_t(size_)}; }
  std::span<const T> span() const { return {data(), size_t(size_)}; }
  T& operator[](int64_t idx) { return data_.get()[idx]; }
  const T& operator[](int64_t idx) const { return data_.get()[idx]; }
  /// The first rows * cols elements as a matrix.
  View<T> view(int64_t rows, int64_t cols) { return {data(), rows, cols}; }
  View<const T> view(int64_t rows, int64_t cols) const { return {data(), rows, cols}; }

 private:
  static_assert(std::is_trivially_copyable_v<T>);
  struct Free {
    Memory memory = Memory::kHost;
    void operator()(T* data) const { free_memory(memory, data); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

}  // namespace onecard
