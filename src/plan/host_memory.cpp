#include "plan/host_memory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "base/error.h"

namespace onecard::plan {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read(const fs::path& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The number behind `key` at the beginning of a line: "MemAvailable:  123 kB", "file 123".
std::optional<int64_t> field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const size_t digits = line.find_first_of("0123456789", key.size());
    int64_t value = 0;
    if (digits != std::string::npos &&
        std::from_chars(line.data() + digits, line.data() + line.size(), value).ec == std::errc())
      return value;
  }
  return std::nullopt;
}

// The one number of a file; nothing for "max" and for files that are not there.
std::optional<int64_t> number(const fs::path& path) {
  const std::optional<std::string> text = read(path);
  return text ? field(*text, "") : std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* page_cache;  // in memory.stat
};
constexpr GroupFiles kV2 = {"memory.max", "memory.current", "file "};
constexpr GroupFiles kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache "};

void apply_groups(const fs::path& mount, fs::path group, const GroupFiles& files, int64_t own_bytes,
                  HostMemory& memory) {
  for (;;) {
    const fs::path directory = mount / group.relative_path();
    const std::optional<int64_t> limit = number(directory / files.limit);
    const std::optional<int64_t> usage = number(directory / files.usage);
    if (limit && usage) {
      const int64_t page_cache =
          field(read(directory / "memory.stat").value_or(""), files.page_cache).value_or(0);
      const int64_t left = std::min(*limit, *limit - (*usage - page_cache) + own_bytes);
      if (left < memory.usable_bytes)
        memory = {left > 0 ? left : 0, (directory / files.limit).string()};
    }
    if (!group.has_relative_path()) return;
    group = group.parent_path();
  }
}

}  // namespace

HostMemory host_memory(const std::string& root) {
  const fs::path base(root);
  const std::optional<std::string> meminfo = read(base / "proc/meminfo");
  const std::optional<int64_t> available =
      meminfo ? field(*meminfo, "MemAvailable:") : std::nullopt;
  if (!available)
    throw Error(ErrorCode::kIo,
                "reading " + (base / "proc/meminfo").string() + ": no line MemAvailable");
  // What this process holds already is charged, and is part of what it plans with.
  const int64_t own_bytes =
      1024 * field(read(base / "proc/self/status").value_or(""), "RssAnon:").value_or(0);
  HostMemory memory{*available * 1024 + own_bytes, "available memory"};

  // "0::/a/b" is v2, "4:memory:/a/b" is v1.
  std::istringstream lines(read(base / "proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path group = line.substr(second + 1);
    if (controllers == ",,")
      apply_groups(base / "sys/fs/cgroup", group, kV2, own_bytes, memory);
    else if (controllers.find(",memory,") != std::string::npos)
      apply_groups(base / "sys/fs/cgroup/memory", group, kV1, own_bytes, memory);
  }
  return memory;
}

}  // namespace onecard::plan
