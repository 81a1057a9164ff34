#include "model/numpy_random.h"

#include <array>
#include <bit>

#include "base/error.h"

namespace onecard::model {
namespace {

__extension__ using Uint128 = unsigned __int128;

/// The first words of SeedSequence(seed).generate_state().
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t seed) {
    const std::array<uint32_t, 4> entropy{uint32_t(seed), uint32_t(seed >> 32), 0, 0};
    uint32_t constant = 0x43b0d7e5;
    const auto hash = [&constant](uint32_t value) {
      value ^= constant;
      constant *= 0x931e8875;
      value *= constant;
      return value ^ value >> 16;
    };
    for (size_t i = 0; i < pool_.size(); ++i) pool_[i] = hash(entropy[i]);
    for (size_t source = 0; source < pool_.size(); ++source) {
      for (size_t target = 0; target < pool_.size(); ++target) {
        if (source == target) continue;
        const uint32_t mixed = 0xca01f9dd * pool_[target] - 0x4973f715 * hash(pool_[source]);
        pool_[target] = mixed ^ mixed >> 16;
      }
    }
  }

  uint64_t next() {
    const uint64_t low = next_word();
    return low | uint64_t(next_word()) << 32;
  }

 private:
  uint32_t next_word() {
    uint32_t value = pool_[num_drawn_++ % pool_.size()] ^ constant_;
    constant_ *= 0x58f38ded;
    value *= constant_;
    return value ^ value >> 16;
  }

  std::array<uint32_t, 4> pool_{};
  uint32_t constant_ = 0x8b51f9dd;
  size_t num_drawn_ = 0;
};

class Pcg64 {
 public:
  explicit Pcg64(uint64_t seed) {
    SeedSequence words(seed);
    const auto next128 = [&words] {
      const Uint128 high = words.next();
      return high << 64 | words.next();
    };
    const Uint128 initial = next128();
    increment_ = next128() << 1 | 1;
    step();
    state_ += initial;
    step();
  }

  uint64_t next() {
    step();
    return std::rotr(uint64_t(state_ >> 64) ^ uint64_t(state_), int(state_ >> 122));
  }

 private:
  void step() {
    constexpr Uint128 kMultiplier = Uint128(2549297995355413924u) << 64 | 4865540595714422341u;
    state_ = state_ * kMultiplier + increment_;
  }

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
};

}  // namespace

std::vector<int64_t> numpy_integers(uint64_t seed, int64_t bound, int64_t count) {
  require(bound > int64_t{1} << 32, ErrorCode::kInvalidArgument,
          "numpy_integers: the bound must be above 2^32");
  Pcg64 generator(seed);
  const auto range = uint64_t(bound);
  const uint64_t threshold = (0 - range) % range;  // 2^64 mod range: below it lies the bias
  std::vector<int64_t> values;
  while (int64_t(values.size()) < count) {
    const Uint128 product = Uint128(generator.next()) * range;
    if (uint64_t(product) >= threshold) values.push_back(int64_t(product >> 64));
  }
  return values;
}

}  // namespace onecard::model
