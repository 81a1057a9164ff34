#include "io/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace onecard::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kOnlyShard = "model.safetensors";

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw Error(ErrorCode::kIo, path + ": " + what + ": " + std::generic_category().message(error));
}

std::string_view module_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(0, dot);
}

// A file under a temporary name until it is committed.
class OutputFile {
 public:
  explicit OutputFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail(temporary_, "cannot create", errno);
  }
  OutputFile(OutputFile&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::move(other.temporary_)),
        descriptor_(std::exchange(other.descriptor_, -1)) {
    other.temporary_.clear();
  }
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  void write(int64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t wrote = ::pwrite(descriptor_, bytes.data(), bytes.size(), off_t(offset));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) fail(temporary_, "cannot write", errno);
      bytes = bytes.subspan(size_t(wrote));
      offset += wrote;
    }
  }

  void sync() {
    if (::fsync(descriptor_) != 0) fail(temporary_, "cannot flush", errno);
    if (::close(std::exchange(descriptor_, -1)) != 0) fail(temporary_, "cannot close", errno);
  }

  void commit() {
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "cannot rename to", errno);
    temporary_.clear();
  }

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

}  // namespace

int64_t TensorSpec::size_bytes() const {
  int64_t size = dtype_size(dtype);
  for (const int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(size, extent, &size))
      throw Error(ErrorCode::kInvalidArgument,
                  "tensor " + json::quoted(name) + ": no tensor has shape " + shape_text(shape));
  return size;
}

std::vector<ShardSpec> plan_shards(std::vector<TensorSpec> tensors, int64_t shard_bytes,
                                   std::string_view (*group_of)(std::string_view name)) {
  if (group_of == nullptr) group_of = module_of;
  std::vector<ShardSpec> shards;
  int64_t used = 0;
  for (size_t begin = 0; begin < tensors.size();) {
    const std::string_view group = group_of(tensors[begin].name);
    int64_t group_bytes = 0;
    size_t end = begin;
    for (; end < tensors.size() && group_of(tensors[end].name) == group; ++end)
      group_bytes += tensors[end].size_bytes();
    if (shards.empty() || (used > 0 && group_bytes > shard_bytes - used)) {
      shards.emplace_back();
      used = 0;
    }
    used += group_bytes;
    // Moved only when the whole group was looked at: `group` points into the first name.
    for (; begin < end; ++begin) shards.back().tensors.push_back(std::move(tensors[begin]));
  }
  if (shards.size() == 1) shards[0].file = kOnlyShard;
  for (size_t i = 0; i < shards.size() && shards.size() > 1; ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    shards[i].file = name;
  }
  return shards;
}

std::string safetensors_header(std::span<const TensorSpec> tensors,
                               std::span<const std::pair<std::string, std::string>> metadata) {
  std::string text = "{";
  const auto separate = [&text] {
    if (text.back() != '{' && text.back() != '[') text += ',';
  };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      separate();
      json::append_quoted(text, key);
      text += ':';
      json::append_quoted(text, value);
    }
    text += '}';
  }
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    separate();
    json::append_quoted(text, tensor.name);
    text += ":{\"dtype\":\"";
    text += dtype_name(tensor.dtype);
    text += "\",\"shape\":[";
    for (const int64_t extent : tensor.shape) {
      separate();
      text += std::to_string(extent);
    }
    text += "],\"data_offsets\":[";
    text += std::to_string(offset);
    offset += tensor.size_bytes();
    text += ',';
    text += std::to_string(offset);
    text += "]}";
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string header;
  for (int i = 0; i < 8; ++i) header += char(uint64_t(text.size()) >> (8 * i) & 0xff);
  return header + text;
}

struct SafetensorsWriter::State {
  struct Slot {
    size_t shard = 0;
    int64_t begin = 0;
    int64_t size = 0;
    int64_t written = 0;
  };

  std::string directory;
  std::vector<ShardSpec> shards;
  std::vector<OutputFile> files;
  std::unordered_map<std::string_view, Slot> slots;  // names are owned by `shards`
  int64_t total_bytes = 0;
};

SafetensorsWriter::SafetensorsWriter(std::string directory, std::vector<ShardSpec> shards)
    : state_(std::make_unique<State>()) {
  state_->directory = std::move(directory);
  state_->shards = std::move(shards);
  std::error_code error;
  fs::create_directories(state_->directory, error);
  if (error) throw Error(ErrorCode::kIo, state_->directory + ": cannot create: " + error.message());
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < state_->shards.size(); ++i) {
    const ShardSpec& shard = state_->shards[i];
    if (!names.insert(shard.file).second)
      throw Error(ErrorCode::kInvalidArgument, "shard " + shard.file + ": declared twice");
    const std::string header = safetensors_header(
        shard.tensors, std::vector<std::pair<std::string, std::string>>{{"format", "pt"}});
    auto begin = int64_t(header.size());
    for (const TensorSpec& tensor : shard.tensors) {
      const int64_t size = tensor.size_bytes();
      if (!state_->slots.emplace(tensor.name, State::Slot{i, begin, size, 0}).second)
        throw Error(ErrorCode::kInvalidArgument,
                    "tensor " + json::quoted(tensor.name) + ": declared twice");
      begin += size;
      state_->total_bytes += size;
    }
    state_->files.emplace_back((fs::path(state_->directory) / shard.file).string());
    state_->files.back().write(0, std::as_bytes(std::span(header)));
  }
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = state_->slots.find(name);
  if (found == state_->slots.end())
    throw Error(ErrorCode::kNotFound, "tensor " + json::quoted(name) + ": was not declared");
  State::Slot& slot = found->second;
  if (int64_t(bytes.size()) > slot.size - slot.written)
    throw Error(ErrorCode::kInvalidArgument,
                "tensor " + json::quoted(name) + ": expected " + std::to_string(slot.size) +
                    " bytes, found at least " + std::to_string(slot.written + bytes.size()));
  state_->files[slot.shard].write(slot.begin + slot.written, bytes);
  slot.written += int64_t(bytes.size());
}

void SafetensorsWriter::finish() {
  for (const ShardSpec& shard : state_->shards)
    for (const TensorSpec& tensor : shard.tensors) {
      const State::Slot& slot = state_->slots.at(tensor.name);
      if (slot.written != slot.size)
        throw Error(ErrorCode::kInvalidArgument, "tensor " + json::quoted(tensor.name) +
                                                     ": expected " + std::to_string(slot.size) +
                                                     " bytes, found " +
                                                     std::to_string(slot.written));
    }
  for (OutputFile& file : state_->files) file.sync();
  for (OutputFile& file : state_->files) file.commit();
  state_->files.clear();
  if (state_->shards.size() == 1 && state_->shards[0].file == kOnlyShard) return;
  std::vector<json::Member> places;
  for (const ShardSpec& shard : state_->shards)
    for (const TensorSpec& tensor : shard.tensors)
      places.emplace_back(tensor.name, json::Value::string(shard.file));
  const json::Value index = json::Value::object(
      {{"metadata",
        json::Value::object({{"total_size", json::Value::integer(state_->total_bytes)}})},
       {"weight_map", json::Value::object(std::move(places))}});
  write_file_atomically((fs::path(state_->directory) / kIndexFile).string(),
                        json::dump(index) + "\n");
}

}  // namespace onecard::io
