// Which kernel is fastest is a question of execution ports, not of CPUID: it is measured.
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "ops/exl3_kernels.h"
#include "tensor/buffer.h"

namespace onecard::ops {
namespace {

using onecard::cpu::Isa;
using Clock = std::chrono::steady_clock;

constexpr int kStrips = 16;  // 12 KiB at K = 3: the first-level cache holds them
constexpr int kRepeats = 24;

// Weights and activations of any bits will do: the time of a kernel does not depend on them.
class Trial {
 public:
  explicit Trial(int bits)
      : tile_bytes_(exl3::tile_bytes(bits)),
        tiles_(kStrips * 8 * tile_bytes_),
        activations_(kExl3MaxActivationBytes * Exl3KernelSet::kSmallRows),
        scales_(Exl3KernelSet::kSmallRows),
        sums_(Exl3KernelSet::kSmallRows * kStrips * 16) {
    uint32_t state = 1;
    for (auto& b : tiles_.span()) {
      state = state * 1664525u + 1013904223u;
      b = std::byte(state >> 24);
    }
  }

  double fastest_run_ns(const Exl3Kernel& kernel, int rows) {
    double best = 1e30;
    for (int i = 0; i < kRepeats; ++i) {
      const auto start = Clock::now();
      kernel.multiply({.tiles = tiles_.data(),
                       .tile_stride_bytes = tile_bytes_,
                       .strip_stride_bytes = 8 * tile_bytes_,
                       .num_strips = kStrips,
                       .rows = rows,
                       .activations = activations_.data(),
                       .scales = scales_.data(),
                       .sums = sums_.data(),
                       .sums_stride = kStrips * 16});
      best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - start).count());
    }
    return best;
  }

 private:
  int64_t tile_bytes_;
  Buffer<std::byte> tiles_, activations_;
  Buffer<float> scales_, sums_;
};

Exl3KernelSet timed_set(Isa isa, Exl3Precision precision, exl3::Codebook codebook, int bits) {
  Exl3KernelSet set(isa, precision, codebook, bits);
  const Exl3Precision used = set.for_rows(1).precision;
  std::vector<const Exl3Kernel*> candidates;
  for (const Exl3Kernel* k : exl3_kernels(isa))
    if (k->precision == used && k->codebook == codebook && k->bits == bits &&
        (k->isa != Isa::kPlain || isa == Isa::kPlain))
      candidates.push_back(k);
  if (candidates.size() < 2) return set;
  Trial trial(bits);
  for (int rows = 1; rows <= Exl3KernelSet::kSmallRows; ++rows) {
    double best = 1e30;
    for (const Exl3Kernel* k : candidates) {
      if (rows > k->max_rows) continue;
      const double ns = trial.fastest_run_ns(*k, rows);
      if (ns >= best) continue;
      best = ns;
      set.use(rows, *k);
    }
  }
  return set;
}

struct Slot {
  std::once_flag once;
  std::unique_ptr<const Exl3KernelSet> set;
};

}  // namespace

const Exl3KernelSet& exl3_fastest(Isa isa, Exl3Precision precision, exl3::Codebook codebook,
                                  int bits) {
  require(bits >= 1 && bits <= 8, ErrorCode::kInvalidArgument, "exl3 kernels: bits must be 1..8");
  static std::array<Slot, 4 * 3 * 3 * 8> slots;
  const size_t idx =
      ((size_t(isa) * 3 + size_t(precision)) * 3 + size_t(codebook)) * 8 + size_t(bits - 1);
  Slot& slot = slots[idx];
  std::call_once(slot.once, [&] {
    slot.set = std::make_unique<const Exl3KernelSet>(timed_set(isa, precision, codebook, bits));
  });
  return *slot.set;
}

}  // namespace onecard::ops
