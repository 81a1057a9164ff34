#include "io/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "io/checkpoint_index.h"
#include "io/safetensors.h"

namespace onecard::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kShardSuffix = ".safetensors";

// What to do about a damaged or missing file; ends every message about one.
std::string repair(const fs::path& path) {
  return "; to repair: hf download REPOSITORY " + path.filename().string() +
         " --force-download --local-dir " + path.parent_path().string();
}

bool is_there(const fs::path& path) {
  std::error_code ignored;  // what cannot be examined cannot be opened either, which says why
  return fs::exists(path, ignored);
}

std::vector<std::string> list_shards(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.size() > kShardSuffix.size() && name.front() != '.' && name.ends_with(kShardSuffix))
      names.push_back(std::move(name));
  }
  if (error) throw Error(ErrorCode::kIo, directory.string() + ": cannot list: " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// "model-00002-of-00048.safetensors" is cut into "model-", 2, 48.
struct NumberedName {
  std::string_view stem;
  int number = 0;
  int count = 0;
};

std::optional<NumberedName> numbered_name(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  constexpr size_t kDigits = 5;
  constexpr size_t kTail = kDigits + kOf.size() + kDigits + kShardSuffix.size();
  if (name.size() <= kTail) return std::nullopt;
  const size_t begin = name.size() - kTail;
  const auto digits = [&](size_t at) -> std::optional<int> {
    int value = 0;
    const auto result = std::from_chars(name.data() + at, name.data() + at + kDigits, value);
    if (result.ec != std::errc() || result.ptr != name.data() + at + kDigits) return std::nullopt;
    return value;
  };
  const std::optional<int> number = digits(begin);
  const std::optional<int> count = digits(begin + kDigits + kOf.size());
  if (!number || !count || name.substr(begin + kDigits, kOf.size()) != kOf) return std::nullopt;
  return NumberedName{name.substr(0, begin), *number, *count};
}

// Without an index only the names can tell that a shard is missing: "-00002-of-00048" promises 48.
void check_no_shard_missing(const fs::path& directory, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::optional<NumberedName> numbered = numbered_name(name);
    if (!numbered) continue;
    for (int number = 1; number <= numbered->count; ++number) {
      char tail[40];
      std::snprintf(tail, sizeof(tail), "%05d-of-%05d", number, numbered->count);
      std::string wanted(numbered->stem);
      wanted += tail;
      wanted += kShardSuffix;
      if (!std::binary_search(names.begin(), names.end(), wanted)) {
        const fs::path path = directory / wanted;
        throw Error(ErrorCode::kDataCorrupt, path.string() + ": " + name + " says that there are " +
                                                 std::to_string(numbered->count) +
                                                 " shards: expected this one, found none" +
                                                 repair(path));
      }
    }
    return;
  }
}

struct Shard {
  MappedFile file;
  std::vector<TensorInfo> tensors;  // by position in the file
};

Shard open_shard(const fs::path& path) {
  try {
    MappedFile file = MappedFile::open(path.string());
    const int64_t size = int64_t(file.bytes().size());
    // By read, not through the mapping: a header is small, and a read can fail with a message.
    std::vector<std::byte> head(size_t(std::min<int64_t>(size, 8)));
    file.file().read_exact(0, head);
    const int64_t length = safetensors_header_bytes(head, size, path.string());
    head.resize(size_t(8 + length));
    file.file().read_exact(0, head);
    return {std::move(file), parse_safetensors_header(head, size, path.string()).tensors};
  } catch (const Error& error) {
    throw Error(error.code(), error.what() + repair(path));
  }
}

void require_directory(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    throw Error(ErrorCode::kNotFound, path + ": expected a directory with a checkpoint, found " +
                                          (is_there(path) ? "something else" : "nothing"));
}

std::optional<CheckpointIndex> read_index(const fs::path& directory) {
  const fs::path path = directory / kIndexFile;
  if (!is_there(path)) return std::nullopt;
  try {
    return parse_checkpoint_index(read_text_file(path.string(), kMaxIndexBytes), path.string());
  } catch (const Error& error) {
    throw Error(error.code(), error.what() + repair(path));
  }
}

// A tensor that the index promises has to be in its shard. Shards hold their tensors in another
// order than indices do, so look through sorted positions.
void check_index(const fs::path& shard_path, const Shard& shard, const CheckpointIndex& index,
                 uint32_t shard_idx, std::string_view name_part) {
  std::vector<std::string_view> held;
  held.reserve(shard.tensors.size());
  for (const TensorInfo& tensor : shard.tensors) held.emplace_back(tensor.name);
  std::sort(held.begin(), held.end());
  for (const auto& [name, place] : index.tensors)
    if (place == shard_idx && name.find(name_part) != std::string::npos &&
        !std::binary_search(held.begin(), held.end(), name))
      throw Error(ErrorCode::kDataCorrupt, shard_path.string() + ": tensor " + json::quoted(name) +
                                               ": expected it here (" + kIndexFile +
                                               " says so), found " + std::to_string(held.size()) +
                                               " other tensors" + repair(shard_path));
}

}  // namespace

struct Checkpoint::State {
  std::string directory;
  std::vector<MappedFile> files;
  std::vector<std::vector<TensorInfo>> infos;  // of each file; own the names and shapes
  std::vector<StoredTensor> tensors;
  std::vector<uint32_t> by_name;  // positions in tensors
  int64_t total_bytes = 0;

  void add_file(Shard shard) {
    files.push_back(std::move(shard.file));
    infos.push_back(std::move(shard.tensors));
  }

  void open_main(const fs::path& path, std::span<const ExtraDirectory> extra) {
    if (const std::optional<CheckpointIndex> index = read_index(path)) {
      for (uint32_t i = 0; i < index->shards.size(); ++i) {
        const fs::path shard_path = find_shard(path, extra, *index, i);
        Shard shard = open_shard(shard_path);
        check_index(shard_path, shard, *index, i, "");
        add_file(std::move(shard));
      }
      return;
    }
    const std::vector<std::string> names = list_shards(path);
    if (names.empty())
      throw Error(ErrorCode::kNotFound,
                  path.string() + ": expected " + kIndexFile + " or *.safetensors, found neither");
    check_no_shard_missing(path, names);
    for (const std::string& name : names) add_file(open_shard(path / name));
  }

  static fs::path find_shard(const fs::path& path, std::span<const ExtraDirectory> extra,
                             const CheckpointIndex& index, uint32_t shard_idx) {
    const std::string& name = index.shards[shard_idx];
    if (is_there(path / name)) return path / name;
    for (const ExtraDirectory& other : extra)
      if (is_there(fs::path(other.path) / name)) return fs::path(other.path) / name;
    const auto holds = [&](const auto& tensor) { return tensor.second == shard_idx; };
    const auto first = std::find_if(index.tensors.begin(), index.tensors.end(), holds);
    throw Error(
        ErrorCode::kDataCorrupt,
        (path / name).string() + ": tensor " + json::quoted(first->first) + ": " + kIndexFile +
            " expects it and " +
            std::to_string(std::count_if(index.tensors.begin(), index.tensors.end(), holds) - 1) +
            " more in this shard, found no such file" + repair(path / name));
  }

  void open_extra(const ExtraDirectory& extra) {
    const fs::path path(extra.path);
    const auto wanted = [&](std::string_view name) {
      return name.find(extra.name_part) != std::string_view::npos;
    };
    std::vector<std::string> names;
    const std::optional<CheckpointIndex> index = read_index(path);
    if (index) {
      std::vector<bool> needed(index->shards.size());
      for (const auto& [name, shard_idx] : index->tensors)
        if (wanted(name)) needed[shard_idx] = true;
      for (uint32_t i = 0; i < needed.size(); ++i)
        if (needed[i]) names.push_back(index->shards[i]);
    } else {
      names = list_shards(path);
    }
    size_t num_taken = 0;
    for (const std::string& name : names) {
      if (index && !is_there(path / name))
        throw Error(ErrorCode::kDataCorrupt, (path / name).string() + ": " + kIndexFile +
                                                 " expects tensors with \"" + extra.name_part +
                                                 "\" in this shard, found no such file" +
                                                 repair(path / name));
      Shard shard = open_shard(path / name);
      if (index) {
        const auto place = std::find(index->shards.begin(), index->shards.end(), name);
        check_index(path / name, shard, *index, uint32_t(place - index->shards.begin()),
                    extra.name_part);
      }
      std::erase_if(shard.tensors, [&](const TensorInfo& tensor) { return !wanted(tensor.name); });
      num_taken += shard.tensors.size();
      if (!shard.tensors.empty()) add_file(std::move(shard));
    }
    if (num_taken == 0)
      throw Error(ErrorCode::kNotFound, extra.path + ": expected tensors with \"" +
                                            extra.name_part + "\" in their names, found none in " +
                                            std::to_string(names.size()) + " files");
  }

  // Files [num_main, ...) are those of extra directories: their tensors replace equal names.
  void index_tensors(size_t num_main) {
    size_t count = 0;
    for (const std::vector<TensorInfo>& list : infos) count += list.size();
    std::vector<StoredTensor> all;
    std::vector<uint32_t> file_of;
    all.reserve(count);
    file_of.reserve(count);
    for (size_t f = 0; f < files.size(); ++f)
      for (const TensorInfo& info : infos[f]) {
        all.push_back(
            {info.name, info.dtype, info.shape,
             files[f].bytes().subspan(size_t(info.begin_bytes), size_t(info.size_bytes())),
             &files[f], info.begin_bytes});
        file_of.push_back(uint32_t(f));
      }
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return all[a].name != all[b].name ? all[a].name < all[b].name : a < b;
    });
    std::vector<bool> replaced(count);
    for (size_t i = 1; i < count; ++i) {
      const uint32_t earlier = order[i - 1];
      const uint32_t later = order[i];
      if (all[earlier].name != all[later].name) continue;
      if (file_of[later] < num_main || file_of[earlier] >= num_main)
        throw Error(ErrorCode::kDataCorrupt,
                    all[later].file->path() + ": tensor " + json::quoted(all[later].name) +
                        ": expected it in one file, found it also in " + all[earlier].file->path());
      replaced[earlier] = true;
    }
    std::vector<uint32_t> place(count);  // in tensors
    tensors.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      if (replaced[i]) continue;
      place[i] = uint32_t(tensors.size());
      tensors.push_back(all[i]);
      total_bytes += int64_t(all[i].bytes.size());
    }
    by_name.reserve(tensors.size());
    for (const uint32_t i : order)
      if (!replaced[i]) by_name.push_back(place[i]);
  }
};

std::string describe(const StoredTensor& tensor) {
  return std::string(dtype_name(tensor.dtype)) + " " + shape_text(tensor.shape);
}

std::string mismatch(const StoredTensor& tensor, std::string_view expected) {
  return tensor.file->path() + ": tensor " + json::quoted(tensor.name) + ": expected " +
         std::string(expected) + ", found " + describe(tensor);
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

Checkpoint Checkpoint::open(const std::string& directory, std::span<const ExtraDirectory> extra) {
  require_directory(directory);
  for (const ExtraDirectory& other : extra) require_directory(other.path);
  auto state = std::make_unique<State>();
  state->directory = directory;
  state->open_main(directory, extra);
  const size_t num_main = state->files.size();
  for (const ExtraDirectory& other : extra) state->open_extra(other);
  state->index_tensors(num_main);
  return Checkpoint(std::move(state));
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const std::vector<StoredTensor>& tensors = state_->tensors;
  const auto place =
      std::lower_bound(state_->by_name.begin(), state_->by_name.end(), name,
                       [&](uint32_t idx, std::string_view key) { return tensors[idx].name < key; });
  if (place == state_->by_name.end() || tensors[*place].name != name) return nullptr;
  return &tensors[*place];
}

const StoredTensor& Checkpoint::at(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr)
    throw Error(ErrorCode::kDataCorrupt, state_->directory + ": tensor " + json::quoted(name) +
                                             ": expected it in the checkpoint, found none");
  return *tensor;
}

std::span<const StoredTensor> Checkpoint::tensors() const { return state_->tensors; }
std::span<const MappedFile> Checkpoint::files() const { return state_->files; }
const std::string& Checkpoint::directory() const { return state_->directory; }
int64_t Checkpoint::total_bytes() const { return state_->total_bytes; }

void Checkpoint::read(const StoredTensor& tensor, int64_t offset_bytes, std::span<std::byte> out) {
  const auto size = int64_t(tensor.bytes.size());
  if (offset_bytes < 0 || offset_bytes > size || int64_t(out.size()) > size - offset_bytes)
    throw Error(ErrorCode::kInvalidArgument,
                "reading tensor " + json::quoted(tensor.name) + ": expected a part of its " +
                    std::to_string(size) + " bytes, found " + std::to_string(out.size()) +
                    " bytes at byte " + std::to_string(offset_bytes));
  try {
    tensor.file->file().read_exact(tensor.offset_bytes + offset_bytes, out);
  } catch (const Error& error) {
    throw Error(error.code(), "tensor " + json::quoted(tensor.name) + ": " + error.what());
  }
}

}  // namespace onecard::io
