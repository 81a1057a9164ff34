// Kinds of memory, and copies between them.
#pragma once

#include <cstddef>

#include "device/exec.h"

namespace onecard {

enum class Memory {
  kHost,
  kPinned,  // of the host; a CUDA device copies from and to it by itself
  kCuda,    // of the calling thread's CUDA device
};

/// Where the ops of a backend read and write.
constexpr Memory tensor_memory(Backend backend) {
  return backend == Backend::kCuda ? Memory::kCuda : Memory::kHost;
}
/// What the host fills so that it can be copied there while the host goes on.
constexpr Memory staging_memory(Backend backend) {
  return backend == Backend::kCuda ? Memory::kPinned : Memory::kHost;
}

/// `bytes`, aligned to 64 and zeroed. Throws std::bad_alloc, kResourceExhausted where a device has
/// no more, kUnsupported in a build without CUDA.
void* allocate_memory(Memory memory, size_t bytes);
void free_memory(Memory memory, void* data) noexcept;

/// Queues a copy behind the work of `exec`; on the CPU it is done on return. The areas are apart.
/// CUDA: each may lie anywhere; what is copied out of pinned memory stays as it is until
/// synchronise().
void queue_copy(const Exec& exec, void* to, const void* from, size_t bytes);

/// Waits until everything that `exec` was given is done.
void synchronise(const Exec& exec);

/// Copies at once, behind everything that the backend's device was given. For what happens between
/// steps: loading, snapshots.
void copy_now(Backend backend, void* to, const void* from, size_t bytes);

}  // namespace onecard
