// From the bytes of a token to its id. A text of a megabyte asks a few hundred thousand times, at
// places that no cache holds, so a look-up touches one cache line, which can be fetched ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace onecard::text {

class TokenIndex {
 public:
  /// Room for `num_keys` keys.
  explicit TokenIndex(size_t num_keys);

  /// False, and nothing changes, when the key is there already. Ids are not negative.
  bool insert(std::string_view key, int32_t id);

  static size_t hash(std::string_view key) { return std::hash<std::string_view>()(key); }
  void prefetch(size_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }

  /// The id of `key`, whose hash is given; negative when there is none.
  int32_t find(std::string_view key, size_t hash) const {
    if (key.size() > kInlineBytes) return find_long(key);
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.id < 0) return slot.id;
      if (slot.num_bytes == key.size() && std::memcmp(slot.bytes, key.data(), key.size()) == 0)
        return slot.id;
    }
  }
  int32_t find(std::string_view key) const { return find(key, hash(key)); }

 private:
  static constexpr size_t kInlineBytes = 27;
  struct alignas(32) Slot {
    int32_t id = -1;
    uint8_t num_bytes = 0;
    char bytes[kInlineBytes] = {};
  };
  static_assert(sizeof(Slot) == 32);

  int32_t find_long(std::string_view key) const;

  std::vector<Slot> slots_;  // open addressing, linear probing, at most half full
  size_t mask_;
  std::unordered_map<std::string, int32_t> long_keys_;
};

}  // namespace onecard::text
