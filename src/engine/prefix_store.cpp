#include "engine/prefix_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace onecard::engine {
namespace {

uint64_t mixed(uint64_t x) {  // SplitMix64's finaliser (Steele, Lea, Flood 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t first_hash(std::string_view salt) {
  uint64_t hash = 0;
  for (const char c : salt) hash = mixed(hash + static_cast<unsigned char>(c) + 1);
  return mixed(hash + 0x9e3779b97f4a7c15);
}

uint64_t next_hash(uint64_t hash, int32_t token) { return mixed(hash + uint32_t(token) + 1); }

}  // namespace

// The rows of `tokens`, which stand behind those of `before`.
struct PrefixStore::Block {
  Block(std::shared_ptr<Block> before_in, std::span<const int32_t> tokens_in,
        std::vector<std::byte> rows_in, int64_t& num_bytes_in)
      : before(std::move(before_in)),
        tokens(tokens_in.begin(), tokens_in.end()),
        rows(std::move(rows_in)),
        num_bytes(num_bytes_in) {
    num_bytes += size_bytes();
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    num_bytes -= size_bytes();
    // One after the other: a long chain must not end in as many nested calls.
    while (before != nullptr && before.use_count() == 1) before = std::move(before->before);
  }
  int64_t size_bytes() const { return int64_t(rows.size() + tokens.size() * sizeof(int32_t)); }

  std::shared_ptr<Block> before;
  const std::vector<int32_t> tokens;
  const std::vector<std::byte> rows;
  int64_t& num_bytes;  // of the store
};

class PrefixStore::Prefix {
 public:
  std::string salt;
  uint64_t hash = 0;
  std::shared_ptr<Block> last_block;  // of the whole blocks
  std::vector<int32_t> rest;          // tokens behind them
  std::vector<std::byte> rest_rows;
  model::Snapshot snapshot;

  int64_t own_bytes() const {
    return int64_t(rest_rows.size() + rest.size() * sizeof(int32_t) + snapshot.bytes.size());
  }

  /// From the end backwards: conversations part near their ends.
  bool equals(std::span<const int32_t> tokens, std::string_view other_salt) const {
    if (int64_t(tokens.size()) != snapshot.num_tokens || salt != other_salt) return false;
    size_t end = tokens.size() - rest.size();
    if (!std::equal(rest.begin(), rest.end(), tokens.begin() + ptrdiff_t(end))) return false;
    for (const Block* block = last_block.get(); block != nullptr; block = block->before.get()) {
      end -= block->tokens.size();
      if (!std::equal(block->tokens.begin(), block->tokens.end(), tokens.begin() + ptrdiff_t(end)))
        return false;
    }
    return true;
  }
};

PrefixStore::PrefixStore(int64_t block_tokens, int64_t budget_bytes)
    : block_tokens_(block_tokens), budget_bytes_(budget_bytes) {
  require(block_tokens >= 1, ErrorCode::kInvalidArgument, "prefix store: no block size");
}

PrefixStore::~PrefixStore() = default;

PrefixStore::Prefix* PrefixStore::lookup(uint64_t hash, std::span<const int32_t> tokens,
                                         std::string_view salt) {
  const auto [begin, end] = prefixes_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry)
    if (entry->second->equals(tokens, salt)) return &*entry->second;
  return nullptr;
}

bool PrefixStore::contains(std::span<const int32_t> tokens, std::string_view salt) {
  uint64_t hash = first_hash(salt);
  for (const int32_t token : tokens) hash = next_hash(hash, token);
  Prefix* const prefix = lookup(hash, tokens, salt);
  if (prefix == nullptr) return false;
  const auto [begin, end] = prefixes_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry)
    if (&*entry->second == prefix) by_use_.splice(by_use_.begin(), by_use_, entry->second);
  return true;
}

void PrefixStore::put(std::span<const int32_t> tokens, std::string_view salt,
                      model::Snapshot snapshot, const ReadRows& read_rows) {
  const auto num_tokens = int64_t(tokens.size());
  require(num_tokens == snapshot.num_tokens, ErrorCode::kInvalidArgument,
          "prefix store: the snapshot is of another position");
  if (contains(tokens, salt)) return;

  Prefix prefix;
  prefix.salt = salt;
  uint64_t hash = first_hash(salt);
  int64_t begin = 0;
  for (; begin + block_tokens_ <= num_tokens; begin += block_tokens_) {
    const auto part = tokens.subspan(size_t(begin), size_t(block_tokens_));
    for (const int32_t token : part) hash = next_hash(hash, token);
    std::weak_ptr<Block>& known = blocks_[hash];
    std::shared_ptr<Block> block = known.lock();
    if (block == nullptr || block->before != prefix.last_block ||
        !std::equal(part.begin(), part.end(), block->tokens.begin(), block->tokens.end())) {
      block = std::make_shared<Block>(prefix.last_block, part,
                                      read_rows(begin, begin + block_tokens_), num_bytes_);
      known = block;
    }
    prefix.last_block = std::move(block);
  }
  const auto rest = tokens.subspan(size_t(begin));
  for (const int32_t token : rest) hash = next_hash(hash, token);
  prefix.rest.assign(rest.begin(), rest.end());
  if (!rest.empty()) prefix.rest_rows = read_rows(begin, num_tokens);
  prefix.hash = hash;
  prefix.snapshot = std::move(snapshot);
  num_bytes_ += prefix.own_bytes();
  by_use_.push_front(std::move(prefix));
  prefixes_.emplace(hash, by_use_.begin());
  evict();
}

void PrefixStore::evict() {
  while (num_bytes_ > budget_bytes_ && !by_use_.empty()) {
    const auto oldest = std::prev(by_use_.end());
    const auto [begin, end] = prefixes_.equal_range(oldest->hash);
    for (auto entry = begin; entry != end; ++entry)
      if (entry->second == oldest) {
        prefixes_.erase(entry);
        break;
      }
    num_bytes_ -= oldest->own_bytes();
    by_use_.erase(oldest);
  }
  if (blocks_.size() > 64 && blocks_.size() > 4 * prefixes_.size())
    std::erase_if(blocks_, [](const auto& entry) { return entry.second.expired(); });
}

const PrefixStore::Prefix* PrefixStore::find(
    std::span<const int32_t> tokens, std::string_view salt,
    const std::function<bool(const model::Snapshot&)>& usable) {
  // All hashes first, then from the longest down: most lookups end at their first hit.
  std::vector<uint64_t> hashes;
  hashes.reserve(tokens.size());
  uint64_t hash = first_hash(salt);
  for (const int32_t token : tokens) hashes.push_back(hash = next_hash(hash, token));
  for (size_t length = tokens.size(); length > 0; --length) {
    if (prefixes_.find(hashes[length - 1]) == prefixes_.end()) continue;
    const auto part = tokens.first(length);
    Prefix* const prefix = lookup(hashes[length - 1], part, salt);
    if (prefix == nullptr || !usable(prefix->snapshot)) continue;
    contains(part, salt);  // used
    return prefix;
  }
  return nullptr;
}

int64_t PrefixStore::num_prefixes() const { return int64_t(by_use_.size()); }

const model::Snapshot& PrefixStore::snapshot(const Prefix& prefix) { return prefix.snapshot; }

void PrefixStore::write_rows(const Prefix& prefix, const WriteRows& write_rows) {
  int64_t end = prefix.snapshot.num_tokens;
  if (!prefix.rest.empty()) {
    write_rows(end - int64_t(prefix.rest.size()), end, prefix.rest_rows);
    end -= int64_t(prefix.rest.size());
  }
  for (const Block* block = prefix.last_block.get(); block != nullptr;
       block = block->before.get()) {
    const int64_t begin = end - int64_t(block->tokens.size());
    write_rows(begin, end, block->rows);
    end = begin;
  }
}

}  // namespace onecard::engine
