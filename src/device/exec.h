// Where and how an op runs. Passed by reference to every op; copied freely.
#pragma once

#include "device/cpu/isa.h"

namespace onecard {

class ThreadPool;

enum class Backend { kCpu, kCuda };

struct Exec {
  Backend backend = Backend::kCpu;
  cpu::Isa isa = cpu::Isa::kPlain;  // CPU kernels no wider than this
  ThreadPool* pool = nullptr;       // null: the calling thread alone
  void* stream = nullptr;           // CUDA: the cudaStream_t that work is queued on
};

}  // namespace onecard
