#include "device/memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "device/cuda/runtime.h"

namespace onecard {

void* allocate_memory(Memory memory, size_t bytes) {
  if (memory != Memory::kHost) return cuda::allocate(memory, bytes);
  const size_t rounded = (bytes + 63) / 64 * 64;
  void* const data = std::aligned_alloc(64, rounded);
  if (data == nullptr) throw std::bad_alloc();
  std::memset(data, 0, rounded);
  return data;
}

void free_memory(Memory memory, void* data) noexcept {
  if (memory != Memory::kHost) return cuda::release(memory, data);
  std::free(data);
}

void queue_copy(const Exec& exec, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (exec.backend == Backend::kCuda) return cuda::queue_copy(exec, to, from, bytes);
  std::memcpy(to, from, bytes);
}

void synchronise(const Exec& exec) {
  if (exec.backend == Backend::kCuda) cuda::synchronise(exec);
}

void copy_now(Backend backend, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (backend == Backend::kCuda) return cuda::copy_now(to, from, bytes);
  std::memcpy(to, from, bytes);
}

}  // namespace onecard
