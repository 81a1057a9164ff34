// How the emulated CUDA runtime runs a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "cuda_runtime_api.h"

namespace onecard::cuda_emulator {

/// In which order the threads of a block get their turn between two barriers. What depends on it
/// is a race.
enum class Order { kAscending, kDescending, kShuffled };
void set_order(Order order);

struct Position {
  dim3 thread_idx, block_idx, block_dim, grid_dim;
};
const Position& current();
unsigned lane_id();
void* dynamic_shared();

void sync_block();
int sync_block_or(int value);

/// All live lanes of `mask` meet: `value` of each is laid into `slots`, the last one to come calls
/// combine(slots, lanes that are there), and every lane then finds its own slot. 32 bytes a lane.
struct Slot {
  alignas(8) std::byte bytes[32];
};
using Combine = void (*)(Slot* slots, uint32_t lanes);
void meet(unsigned mask, Slot& slot, Combine combine);

inline void sync_warp(unsigned mask) {
  Slot slot;
  meet(mask, slot, nullptr);
}

unsigned ballot(unsigned mask, bool predicate);

template <typename T>
T shuffle(unsigned mask, T value, int from_lane) {
  struct Sent {
    T value;
    int from;
  };
  static_assert(sizeof(Sent) <= sizeof(Slot));
  Slot slot;
  const Sent sent{value, from_lane};
  std::memcpy(slot.bytes, &sent, sizeof(sent));
  meet(mask, slot, [](Slot* slots, uint32_t) {
    Sent all[32];
    for (int lane = 0; lane < 32; ++lane) std::memcpy(&all[lane], slots[lane].bytes, sizeof(Sent));
    for (int lane = 0; lane < 32; ++lane) {
      const T received = all[all[lane].from & 31].value;
      std::memcpy(slots[lane].bytes, &received, sizeof(T));
    }
  });
  std::memcpy(&value, slot.bytes, sizeof(T));
  return value;
}

/// Copies that wait until their group is waited for.
void async_copy(void* to, const void* from, size_t bytes);
void async_commit();
void async_wait(int groups_left);

/// Runs the grid now, or puts it into the graph being captured on `stream`.
void run(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes,
         std::function<void()> thread);

}  // namespace onecard::cuda_emulator
