#include "device/cpu/read_rate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "base/thread_pool.h"

namespace onecard::cpu {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;

// Baseline 16-byte loads, four sums: far above what a core gets from memory.
uint64_t read(const std::byte* p, int64_t size) {
  using Vector = uint64_t __attribute__((vector_size(16)));
  Vector sums[4] = {};
  for (int64_t i = 0; i + 64 <= size; i += 64) {
    __builtin_prefetch(p + i + 2048);
    for (int j = 0; j < 4; ++j) {
      Vector v;
      std::memcpy(&v, p + i + 16 * j, 16);
      sums[j] ^= v;
    }
  }
  const Vector all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  return all[0] ^ all[1];
}

}  // namespace

double measure_read_rate(ThreadPool& pool, std::span<const std::byte> memory, int repeats) {
  using Clock = std::chrono::steady_clock;
  const int64_t pieces = int64_t(memory.size()) / kPieceBytes;
  std::atomic<uint64_t> sink{0};  // keeps the loads
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    pool.run(pieces, [&](int64_t piece, int) {
      sink.fetch_xor(read(memory.data() + piece * kPieceBytes, kPieceBytes),
                     std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, double(pieces * kPieceBytes) / seconds);
  }
  return best;
}

}  // namespace onecard::cpu
