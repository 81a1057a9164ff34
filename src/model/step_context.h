// What a pass or a step hands to every layer: where to run, whose rows these are, and scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "device/exec.h"
#include "experts/expert_engine.h"
#include "io/engram_reader.h"
#include "model/config.h"
#include "model/observer.h"
#include "model/sequence_state.h"
#include "ops/hyper_connection.h"
#include "ops/indexer.h"
#include "tensor/buffer.h"
#include "tensor/view.h"

namespace onecard::model {

/// Consecutive rows of one sequence, at consecutive positions.
struct Segment {
  SequenceState* state = nullptr;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t first_position = 0;
  int64_t window_begin = 0;  // no query sees window rows of earlier positions
};

/// Memory for the intermediates of a pass or step of at most `max_rows` rows over sequences of at
/// most `capacity_tokens`. Allocated once.
class Workspace {
 public:
  Workspace(const ModelConfig& config, int64_t max_rows, int64_t capacity_tokens);
  ~Workspace();
  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;

  int64_t max_rows() const;
  int64_t allocated_bytes() const;

  struct Buffers;
  Buffers& buffers() { return *buffers_; }

 private:
  std::unique_ptr<Buffers> buffers_;
};

struct StepContext {
  Exec exec;
  Workspace& workspace;
  std::vector<Segment> segments;
  Observer* observer = nullptr;

  int64_t num_rows() const;
  /// Drops all but the last `num_rows` rows. One segment only, unless nothing is dropped.
  void keep_last(int64_t num_rows);
  void observe(int64_t layer_idx, std::string_view name, View<const float> values) const {
    if (observer != nullptr) observer->observe(layer_idx, name, values);
  }
};

}  // namespace onecard::model
