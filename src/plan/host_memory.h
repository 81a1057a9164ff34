// How much host memory this process may have: what the kernel has left, and what its control groups
// allow.
#pragma once

#include <cstdint>
#include <string>

namespace onecard::plan {

struct HostMemory {
  int64_t usable_bytes = 0;
  /// What sets the limit: "available memory", or the control group's file.
  std::string limited_by;
};

/// The smaller of MemAvailable and, for every control group (v1 and v2) on the way to the root, its
/// limit minus what is charged to it; page cache that can be dropped does not count as used, nor
/// does what this process itself holds. `root` is the directory in which proc/ and sys/ are looked
/// for. Throws kIo when there is no proc/meminfo.
HostMemory host_memory(const std::string& root = "/");

}  // namespace onecard::plan
