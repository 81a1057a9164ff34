// Where the rows of a decode step lie in their sequences. A step has one row of each sequence, all
// at other positions and in other memory; what the layers need to know of that is written here by
// the host, once a step, and read by ops from arrays that stay in their places: the work that is
// queued is the same for every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/step_context.h"
#include "ops/attention.h"
#include "ops/compressor.h"
#include "tensor/buffer.h"

namespace onecard::model {

class DecodeTable {
 public:
  DecodeTable(const ModelConfig& config, int64_t max_rows, Backend backend);

  /// Segments of one row each. Of a device: not before it has what was filled here earlier.
  void fill(std::span<const Segment> segments);
  /// Queues the way to the ops of `exec`; where they run on the host there is none.
  void queue(const Exec& exec);

  // Arrays of rows [begin, end), where ops read them.

  std::span<const int64_t> positions(int64_t begin, int64_t end) const;
  /// The place of the row's own window row.
  std::span<std::byte* const> window_slots(int64_t layer_idx, int64_t begin, int64_t end) const;
  std::span<const std::byte* const> window_rings(int64_t layer_idx, int64_t begin,
                                                 int64_t end) const;
  // Of a kv source:
  /// How many of its groups the row sees.
  std::span<const int64_t> num_visible(int64_t layer_idx, int64_t begin, int64_t end) const;
  /// Of the first token of the group that the row is in.
  std::span<const int64_t> group_positions(int64_t layer_idx, int64_t begin, int64_t end) const;
  std::span<const std::byte* const> main_rows(int64_t layer_idx, int64_t begin, int64_t end) const;
  std::span<const std::byte* const> index_rows(int64_t layer_idx, int64_t begin, int64_t end) const;
  /// The place of the group that the row completes; null where it leaves the group open.
  std::span<std::byte* const> main_slots(int64_t layer_idx, int64_t begin, int64_t end) const;
  std::span<std::byte* const> index_slots(int64_t layer_idx, int64_t begin, int64_t end) const;
  /// The rings of the open group, and the row's own place in them. Where the ratio is above 1.
  ops::OpenGroups open_groups(int64_t layer_idx, int64_t begin, int64_t end) const;
  std::span<std::byte* const> key_slots(int64_t layer_idx, int64_t begin, int64_t end) const;
  std::span<std::byte* const> gate_slots(int64_t layer_idx, int64_t begin, int64_t end) const;

 private:
  // Arrays of a kv source, of a layer, and those before them.
  enum SourceNumber { kVisible, kGroupPosition, kSourceNumbers };
  enum SourcePlace {
    kMainRows,
    kIndexRows,
    kMainSlot,
    kIndexSlot,
    kKeyRing,
    kGateRing,
    kKeySlot,
    kGateSlot,
    kSourcePlaces
  };
  enum LayerPlace { kWindowSlot, kWindowRing, kLayerPlaces };

  int64_t source_number(int64_t layer_idx, SourceNumber what) const;
  int64_t source_place(int64_t layer_idx, SourcePlace what) const;
  int64_t layer_place(int64_t layer_idx, LayerPlace what) const {
    return layer_idx * kLayerPlaces + what;
  }
  std::span<const int64_t> numbers(int64_t array, int64_t begin, int64_t end) const;
  std::span<std::byte* const> places(int64_t array, int64_t begin, int64_t end) const;

  struct Source {
    int64_t layer_idx, ratio;
  };
  int64_t source_idx(int64_t layer_idx) const;

  int64_t max_rows_;
  int64_t num_layers_;
  std::vector<Source> sources_;
  int64_t num_open_slots_ = 1;  // of the sequences of this step: all are made alike
  Buffer<int64_t> numbers_;     // [arrays, max_rows]; what the host fills
  Buffer<std::byte*> places_;
  Buffer<int64_t> device_numbers_;
  Buffer<std::byte*> device_places_;
  const int64_t* read_numbers_;  // of the two the one that ops read
  std::byte* const* read_places_;
};

}  // namespace onecard::model
