#include "text/token_index.h"

#include <bit>

namespace onecard::text {

TokenIndex::TokenIndex(size_t num_keys)
    : slots_(std::bit_ceil(2 * num_keys + 2)), mask_(slots_.size() - 1) {}

bool TokenIndex::insert(std::string_view key, int32_t id) {
  if (key.size() > kInlineBytes) return long_keys_.emplace(key, id).second;
  const size_t key_hash = hash(key);
  if (find(key, key_hash) >= 0) return false;
  size_t i = key_hash & mask_;
  while (slots_[i].id >= 0) i = (i + 1) & mask_;
  slots_[i].id = id;
  slots_[i].num_bytes = static_cast<uint8_t>(key.size());
  key.copy(slots_[i].bytes, key.size());
  return true;
}

int32_t TokenIndex::find_long(std::string_view key) const {
  const auto found = long_keys_.find(std::string(key));
  return found == long_keys_.end() ? -1 : found->second;
}

}  // namespace onecard::text
