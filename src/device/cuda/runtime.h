// The CUDA half of device/memory.h: same contracts. Without CUDA, device/no_cuda.cpp refuses
// instead. Included by device/*.cpp alone.
#pragma once

#include <cstddef>

#include "device/exec.h"
#include "device/memory.h"

namespace onecard::cuda {

void* allocate(Memory memory, size_t bytes);
void release(Memory memory, void* data) noexcept;
void queue_copy(const Exec& exec, void* to, const void* from, size_t bytes);
void synchronise(const Exec& exec);
void copy_now(void* to, const void* from, size_t bytes);

}  // namespace onecard::cuda
