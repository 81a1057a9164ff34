// Where and how an op runs. Passed by reference to every op; copied freely.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cpu/isa.h"

namespace onecard {

class ThreadPool;

enum class Backend { kCpu, kCuda };

/// Device memory that the ops of one stream use between and inside their kernels, each from its
/// beginning. The first kCounterBytes are counters: zero between ops, and left so by every op.
struct DeviceScratch {
  static constexpr int64_t kCounterBytes = 256 << 10;
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

struct Exec {
  Backend backend = Backend::kCpu;
  cpu::Isa isa = cpu::Isa::kPlain;  // CPU kernels no wider than this
  ThreadPool* pool = nullptr;       // null: the calling thread alone
  bool dense_int16 = false;         // CPU: dense EXL3 products round activations to 15 bits
  void* stream = nullptr;           // CUDA: the cudaStream_t that work is queued on
  DeviceScratch scratch{};          // CUDA: that of the stream
};

}  // namespace onecard
