// The vocabulary as a tree of bytes: shared by all grammars of a tokenizer, and read-only.
#pragma once

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

  int vocab_size() const { return vocab_size_; }
  std::span<const int32_t> end_ids() const { return end_ids_; }
  /// The bytes of a token as given to the constructor.
  std::string_view token_bytes(int32_t id) const;

  /// Words of 64 bits that a mask over the vocabulary takes.
  size_t mask_words() const { return (size_t(vocab_size_) + 63) / 64; }

  /// The tree in preorder: a node's first child follows it, its subtree ends before `subtree_end`.
  /// The root (no byte, no token) is node 0.
  struct Node {
    uint32_t subtree_end = 0;
    uint32_t first_token = 0;  // into tokens(): those that end here
    uint16_t num_tokens = 0;
    uint8_t byte = 0;
    uint16_t depth = 0;  // bytes from the root
  };
  std::span<const Node> nodes() const { return nodes_; }
  /// Token ids ordered by their bytes, so that the tokens of a subtree are neighbours.
  std::span<const int32_t> tokens() const { return tokens_; }

 private:
  int vocab_size_ = 0;
  std::vector<int32_t> end_ids_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  std::vector<char> bytes_;
  std::vector<uint32_t> byte_offsets_;  // vocab_size + 1
};

}  // namespace onecard::text
