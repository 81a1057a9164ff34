#include "text/grammar/token_trie.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace onecard::text {

TokenTrie::TokenTrie(std::span<const std::string_view> token_bytes,
                     std::span<const int32_t> end_ids)
    : end_ids_(end_ids.begin(), end_ids.end()) {
  byte_offsets_.push_back(0);
  for (size_t id = 0; id < token_bytes.size(); ++id) {
    const std::string_view bytes = token_bytes[id];
    require(bytes.size() < std::numeric_limits<uint16_t>::max(), ErrorCode::kUnsupported,
            "token trie: a token is longer than 65,534 bytes");
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    byte_offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    if (is_end(static_cast<int32_t>(id))) continue;
    if (bytes.empty())
      silent_ids_.push_back(static_cast<int32_t>(id));
    else
      tokens_.push_back(static_cast<int32_t>(id));
  }
  for (const int32_t id : end_ids_)
    require(id >= 0 && id < vocab_size(), ErrorCode::kInvalidArgument,
            "token trie: an end id is not in the vocabulary");

  std::stable_sort(tokens_.begin(), tokens_.end(), [&](int32_t a, int32_t b) {
    return this->token_bytes(a) < this->token_bytes(b);
  });
  // Preorder of the tree is the order of the sorted tokens; `path` is the branch to the last one.
  nodes_.emplace_back();
  std::vector<uint32_t> path = {0};
  const auto close_to = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back()) {
      Node& node = nodes_[path.back()];
      node.subtree_end = static_cast<uint32_t>(nodes_.size());
      node.deepest = std::max(node.deepest, node.depth);
      Node& parent = nodes_[path[path.size() - 2]];
      parent.deepest = std::max(parent.deepest, node.deepest);
    }
  };
  std::string_view last;
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view bytes = this->token_bytes(tokens_[i]);
    const size_t common = static_cast<size_t>(
        std::mismatch(last.begin(), last.end(), bytes.begin(), bytes.end()).first - last.begin());
    close_to(common);
    for (size_t depth = common; depth < bytes.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.first_token = i,
                        .depth = static_cast<uint16_t>(depth + 1),
                        .byte = static_cast<uint8_t>(bytes[depth])});
    }
    if (nodes_[path.back()].num_tokens++ == 0) nodes_[path.back()].first_token = i;
    max_depth_ = std::max(max_depth_, static_cast<int>(bytes.size()));
    last = bytes;
  }
  close_to(0);
  nodes_[0].subtree_end = static_cast<uint32_t>(nodes_.size());

  longer_counts_.assign(static_cast<size_t>(max_depth_) + 1, 0);
  for (const int32_t id : tokens_)
    for (size_t length = 0; length < this->token_bytes(id).size(); ++length)
      ++longer_counts_[length];
  by_length_ = tokens_;
  std::stable_sort(by_length_.begin(), by_length_.end(), [&](int32_t a, int32_t b) {
    return this->token_bytes(a).size() > this->token_bytes(b).size();
  });
}

std::span<const int32_t> TokenTrie::tokens_longer_than(size_t num_bytes) const {
  if (num_bytes >= longer_counts_.size()) return {};
  return std::span(by_length_).first(longer_counts_[num_bytes]);
}

bool TokenTrie::is_end(int32_t id) const {
  return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end();
}

std::string_view TokenTrie::token_bytes(int32_t id) const {
  const uint32_t begin = byte_offsets_[static_cast<size_t>(id)];
  return {bytes_.data() + begin, byte_offsets_[static_cast<size_t>(id) + 1] - begin};
}

}  // namespace onecard::text
