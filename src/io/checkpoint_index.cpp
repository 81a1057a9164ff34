#include "io/checkpoint_index.h"

#include <unordered_map>

#include "base/error.h"
#include "base/json.h"

namespace onecard::io {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

bool plain_file_name(std::string_view name) {
  if (name.size() <= kSuffix.size() || name.size() > 255 || name.front() == '.') return false;
  if (name.substr(name.size() - kSuffix.size()) != kSuffix) return false;
  for (const char c : name)
    if (c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20) return false;
  return true;
}

[[noreturn]] void fail(std::string_view file, const std::string& what) {
  throw Error(ErrorCode::kDataCorrupt, std::string(file) + ": " + what);
}

}  // namespace

CheckpointIndex parse_checkpoint_index(std::string_view text, std::string_view file) {
  json::Value root;
  try {
    root = json::parse(text, {.max_depth = 16, .duplicate_keys = json::DuplicateKeys::kReject});
  } catch (const Error& error) {
    fail(file, error.what());
  }
  const json::Value* weight_map = root.find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object())
    fail(file, "expected an object \"weight_map\" from tensor names to file names, found none");
  if (weight_map->members().empty()) fail(file, "expected tensors in \"weight_map\", found none");

  CheckpointIndex index;
  index.tensors.reserve(weight_map->members().size());
  std::unordered_map<std::string_view, uint32_t> places;  // into the members, which stay
  for (const auto& [name, shard] : weight_map->members()) {
    if (name.empty()) fail(file, "expected every tensor to have a name, found an empty one");
    if (!shard.is_string() || !plain_file_name(shard.as_string()))
      fail(file, "tensor " + json::quoted(name) +
                     ": expected the name of a .safetensors file in the same directory, found " +
                     (shard.is_string() ? json::quoted(shard.as_string()) : "no string"));
    const auto [place, added] =
        places.emplace(shard.as_string(), static_cast<uint32_t>(index.shards.size()));
    if (added) index.shards.push_back(shard.as_string());
    index.tensors.emplace_back(name, place->second);
  }
  return index;
}

}  // namespace onecard::io
