// model.safetensors.index.json: which shard holds which tensor. Untrusted text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace onecard::io {

struct CheckpointIndex {
  std::vector<std::string> shards;                        // file names, in order of first mention
  std::vector<std::pair<std::string, uint32_t>> tensors;  // name, position in shards
};

constexpr int64_t kMaxIndexBytes = 256 << 20;

/// Checked: JSON (depth, duplicate names), names, and that every shard is a plain file name, so
/// that an index cannot lead out of its directory. Sizes it states are ignored: they are often
/// wrong. Throws kDataCorrupt naming `file`, the tensor, expected and found.
CheckpointIndex parse_checkpoint_index(std::string_view text, std::string_view file);

}  // namespace onecard::io
