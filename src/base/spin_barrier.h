// A barrier for a fixed number of threads that all run: arrivals count on one cache line, waiting
// is done on another. Spins, and gives its time slice away when it spins for long: with more
// threads than cores the last one still gets to run.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace onecard {

/// Spins until `done()` holds.
template <typename Done>
void spin_until(const Done& done) {
  constexpr int kSpins = 4000;
  for (int spins = 0; !done(); ++spins) {
    if (spins < kSpins)
      __builtin_ia32_pause();
    else
      std::this_thread::yield();
  }
}

class SpinBarrier {
 public:
  /// Between uses only.
  void reset(int num_threads) { num_threads_ = num_threads; }

  /// Returns once all threads have arrived; what they wrote before is then visible here.
  void wait() {
    const uint32_t generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.fetch_add(1, std::memory_order_release);
      return;
    }
    spin_until([&] { return generation_.load(std::memory_order_acquire) != generation; });
  }

 private:
  int num_threads_ = 1;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

}  // namespace onecard
