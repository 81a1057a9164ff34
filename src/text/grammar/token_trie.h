// The vocabulary as a tree of bytes: shared by all grammars of a tokenizer, and read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace onecard::text {

class TokenTrie {
 public:
  /// `token_bytes[id]` is what the token stands for; empty for an id that no constrained text may
  /// hold (unused ids, and the tokens that begin turns). `end_ids` end the output; they are allowed
  /// exactly where a grammar is complete. The views need not outlive the call.
  TokenTrie(std::span<const std::string_view> token_bytes, std::span<const int32_t> end_ids);

  int vocab_size() const { return static_cast<int>(byte_offsets_.size()) - 1; }
  /// Words of 64 bits that a mask over the vocabulary takes.
  size_t mask_words() const { return (byte_offsets_.size() - 1 + 63) / 64; }
  std::span<const int32_t> end_ids() const { return end_ids_; }
  bool is_end(int32_t id) const;
  /// The bytes of a token as given to the constructor; `id` is in [0, vocab_size()).
  std::string_view token_bytes(int32_t id) const;
  /// Ids without bytes that do not end the output either.
  std::span<const int32_t> silent_ids() const { return silent_ids_; }

  /// The tree in preorder: the first child follows its parent, a subtree ends before `subtree_end`.
  /// The root (no byte, no token) is node 0.
  struct Node {
    uint32_t subtree_end = 0;
    uint32_t first_token = 0;  // into tokens(): those that end here
    uint16_t num_tokens = 0;
    uint16_t depth = 0;    // bytes from the root
    uint16_t deepest = 0;  // the greatest depth in the subtree
    uint8_t byte = 0;
  };
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int32_t> tokens_at(const Node& node) const {
    return std::span(tokens_).subspan(node.first_token, node.num_tokens);
  }
  int max_depth() const { return max_depth_; }
  /// Those of tokens() that have more bytes.
  std::span<const int32_t> tokens_longer_than(size_t num_bytes) const;

 private:
  std::vector<int32_t> end_ids_;
  std::vector<int32_t> silent_ids_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> by_length_;     // tokens_, the longest first
  std::vector<size_t> longer_counts_;  // by length: how many tokens are longer
  std::vector<char> bytes_;
  std::vector<uint32_t> byte_offsets_;  // vocab_size + 1
  int max_depth_ = 0;
};

}  // namespace onecard::text
