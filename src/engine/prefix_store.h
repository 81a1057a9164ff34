// Prefixes of prompts and answers in host memory: what a slot held, so that a later prompt that
// begins the same way need not compute it again. Engine thread only.
//
// A prefix is the global rows of its tokens and one snapshot of everything else at its end. Rows
// live in blocks of tokens that prefixes with a common beginning share. A prefix is found by a hash
// and confirmed token by token: a match is exact. Beyond the budget the prefixes that were used
// longest ago go first; a block goes with the last prefix that needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/sequence_state.h"

namespace onecard::engine {

class PrefixStore {
 public:
  /// Copies the rows of tokens [begin, end) to or from a sequence.
  using ReadRows = std::function<std::vector<std::byte>(int64_t begin, int64_t end)>;
  using WriteRows =
      std::function<void(int64_t begin, int64_t end, std::span<const std::byte> rows)>;

  /// `block_tokens`: a multiple of the sequences' global_row_granularity().
  PrefixStore(int64_t block_tokens, int64_t budget_bytes);
  ~PrefixStore();

  /// Whether the prefix is known; marks it as used.
  bool contains(std::span<const int32_t> tokens, std::string_view salt);

  /// Keeps a prefix that is not known yet. `read_rows` is asked for the blocks that no other prefix
  /// has; its last range ends at tokens.size(). A prefix that the whole budget cannot hold is left
  /// out.
  void put(std::span<const int32_t> tokens, std::string_view salt, model::Snapshot snapshot,
           const ReadRows& read_rows);

  class Prefix;
  /// The longest known prefix of `tokens` that is `usable`; null when there is none. Valid until
  /// the next call.
  const Prefix* find(std::span<const int32_t> tokens, std::string_view salt,
                     const std::function<bool(const model::Snapshot&)>& usable);
  static const model::Snapshot& snapshot(const Prefix& prefix);
  static void write_rows(const Prefix& prefix, const WriteRows& write_rows);

  int64_t num_bytes() const { return num_bytes_; }
  int64_t num_prefixes() const;

 private:
  struct Block;
  using PrefixList = std::list<Prefix>;

  Prefix* lookup(uint64_t hash, std::span<const int32_t> tokens, std::string_view salt);
  void evict();

  const int64_t block_tokens_;
  const int64_t budget_bytes_;
  int64_t num_bytes_ = 0;
  PrefixList by_use_;                                                 // the last used first
  std::unordered_multimap<uint64_t, PrefixList::iterator> prefixes_;  // by hash of all tokens
  std::unordered_map<uint64_t, std::weak_ptr<Block>>
      blocks_;  // by hash of the tokens up to its end
};

}  // namespace onecard::engine
