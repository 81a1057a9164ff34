#include "device/cpu/read_rate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/thread_pool.h"

namespace onecard::cpu {
namespace {

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

double measure_read_rate(ThreadPool& pool, std::span<const std::span<const std::byte>> pieces,
                         int repeats) {
  using Clock = std::chrono::steady_clock;
  int64_t bytes = 0;
  for (const auto piece : pieces) bytes += int64_t(piece.size());
  std::atomic<uint64_t> sink{0};  // keeps the loads
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    pool.run(int64_t(pieces.size()), [&](int64_t idx, int) {
      const std::span<const std::byte> piece = pieces[size_t(idx)];
      sink.fetch_xor(read(piece.data(), int64_t(piece.size())), std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, double(bytes) / seconds);
  }
  return best;
}

double measure_read_rate(ThreadPool& pool, std::span<const std::byte> memory, int repeats) {
  constexpr size_t kPieceBytes = 1 << 20;
  std::vector<std::span<const std::byte>> pieces;
  for (size_t begin = 0; begin + kPieceBytes <= memory.size(); begin += kPieceBytes)
    pieces.push_back(memory.subspan(begin, kPieceBytes));
  return measure_read_rate(pool, pieces, repeats);
}

}  // namespace onecard::cpu
