// What a pass or a step hands to every layer: where to run, whose rows these are, and scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "device/exec.h"
#include "model/config.h"
#include "model/observer.h"
#include "model/sequence_state.h"
#include "ops/indexer.h"
#include "tensor/view.h"

namespace onecard::model {

/// Consecutive rows of one sequence, at consecutive positions.
struct Segment {
  SequenceState* state = nullptr;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t first_position = 0;
  int64_t window_begin = 0;  // no query sees window rows of earlier positions

  // The window rows that the current layer made: their first row and position. Queries may be
  // fewer.
  int64_t first_window_row = 0;
  int64_t first_window_position = 0;
  int64_t num_window_rows = 0;
};

class DecodeTable;

/// Memory for the intermediates of a pass or step of at most `max_rows` rows over sequences of at
/// most `capacity_tokens`, where `backend` runs them. Allocated once.
class Workspace {
 public:
  Workspace(const ModelConfig& config, int64_t max_rows, int64_t capacity_tokens,
            Backend backend = Backend::kCpu);
  ~Workspace();
  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;

  int64_t max_rows() const { return max_rows_; }
  int64_t capacity_tokens() const { return capacity_tokens_; }
  /// Where a forward keeps its streams and carried collapse weights.
  View<float> streams(int64_t num_rows);
  View<float> mix(int64_t num_rows);

  struct Buffers;  // model/workspace.h
  Buffers& buffers() { return *buffers_; }

 private:
  int64_t max_rows_;
  int64_t capacity_tokens_;
  std::unique_ptr<Buffers> buffers_;
};

struct StepContext {
  Exec exec;
  Workspace* workspace = nullptr;
  std::vector<Segment> segments;
  Observer* observer = nullptr;
  bool global_rows_done = false;  // the tokens' global rows of the current layer are in place
  /// A decode step's: each segment is the next token of another sequence, and layers read of the
  /// sequences what is written here, so that they queue the same work at every step.
  const DecodeTable* decode_table = nullptr;

  // Of the current rows: rotations by both frequency tables, and what the last index source
  // selected.
  View<const float> angles_main;
  View<const float> angles_compress;
  ops::IndexLists selected;
  ops::IndexLists candidates;

  Workspace::Buffers& buffers() const { return workspace->buffers(); }
  int64_t num_rows() const;
  /// Drops all but the last `num_rows` rows; one segment only, unless nothing is dropped.
  void keep_last(int64_t num_rows);
  /// Shows values to the observer, where there is one; a device is then waited for.
  void observe(int64_t layer_idx, std::string_view name, View<const float> values) const;
  void observe_routed(int64_t layer_idx, View<const int32_t> expert_ids) const;
};

}  // namespace onecard::model
