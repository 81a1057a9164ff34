// What an expert engine found when it timed itself at start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onecard::experts {

struct ExpertTiming {
  /// Where the timed weights came from: one expert after another was picked at random, so those of
  /// a store that fits the last-level cache came from there.
  enum class Source { kMemory, kMixed, kCache };

  std::string kernel;  // of one row
  std::string precision;
  int prefetch_bytes = 0;
  int num_threads = 0;
  std::vector<int> timed_threads;    // the counts that were compared
  double us_per_expert = 0;          // one row, in jobs of kExpertsPerJob
  double bytes_per_second = 0;       // packed weights
  double read_bytes_per_second = 0;  // the same threads only reading the same weights
  Source source = Source::kMemory;
  int64_t store_bytes = 0;
  int64_t cache_bytes = 0;  // the machine's last level

  static constexpr int kExpertsPerJob = 4;
};

}  // namespace onecard::experts
