// io/checkpoint_index: any bytes either parse or throw Error; every shard of what parses is the
// name of a file in the same directory, and every tensor lies in one.
#include <cstdlib>
#include <set>
#include <string_view>

#include "base/error.h"
#include "io/checkpoint_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  onecard::io::CheckpointIndex index;
  try {
    index = onecard::io::parse_checkpoint_index(text, "f");
  } catch (const onecard::Error& error) {
    if (error.code() != onecard::ErrorCode::kDataCorrupt) std::abort();
    return 0;
  }
  if (index.tensors.empty()) std::abort();
  std::set<std::string_view> shards;
  for (const std::string& shard : index.shards) {
    const std::string_view name(shard);
    if (name.find('/') != name.npos || name.find('\0') != name.npos || name.starts_with(".") ||
        !name.ends_with(".safetensors") || !shards.insert(name).second)
      std::abort();
  }
  std::set<std::string_view> names;
  for (const auto& [name, shard_idx] : index.tensors)
    if (name.empty() || shard_idx >= index.shards.size() || !names.insert(name).second)
      std::abort();
  return 0;
}
