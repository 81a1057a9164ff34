// A whole checkpoint into an EXL3 pack. Work goes to DST.partial: a file for every finished matrix,
// then shards, each complete before its matrices' files go. A run that was killed is continued by
// the same call and gives the same bytes. At the end DST.partial becomes DST.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/exec.h"
#include "io/checkpoint.h"
#include "quantize/pack_plan.h"

namespace onecard::quantize {

/// Second moments of a module's inputs, [in, in]; empty when there are none.
class Hessians {
 public:
  virtual ~Hessians() = default;
  virtual std::vector<double> of(const PackItem& item) = 0;
};

struct ModuleReport {
  std::string module;
  int bits = 0;  // 0: a matrix that stays as it is, because its dimensions are no multiples of 128
  int64_t num_weights = 0;
  double scale = 0;
  double relative_error = 0;
  std::optional<double> proxy_error;
};

struct Progress {
  int64_t modules_done = 0;
  int64_t num_modules = 0;
  int64_t weights_done = 0;  // of all, those found finished included
  int64_t num_weights = 0;
  int64_t weights_this_run = 0;  // for a rate
};

struct QuantizeCheckpointOptions {
  PackOptions pack;
  int64_t shard_bytes = int64_t(8) << 30;
  Hessians* hessians = nullptr;  // borrowed
  std::string calibration;       // what the Hessians come from, for config.json and for resuming
  int64_t calibration_tokens = 0;
  /// Further files of the pack: name, content.
  std::vector<std::pair<std::string, std::string>> files;
  /// Called after every matrix, from the calling thread.
  std::function<void(const Progress&, const ModuleReport&)> on_module;
};

/// Uses exec.pool and exec.isa. Throws kInvalidArgument when `destination` exists or DST.partial
/// was begun with other options; kIo, kDataCorrupt.
void quantize_checkpoint(const Exec& exec, const io::Checkpoint& source,
                         const std::string& destination, const QuantizeCheckpointOptions& options);

}  // namespace onecard::quantize
