#include "model/decode_table.h"

#include <algorithm>

#include "base/error.h"
#include "device/memory.h"

namespace onecard::model {

DecodeTable::DecodeTable(const ModelConfig& config, int64_t max_rows, Backend backend)
    : max_rows_(max_rows), num_layers_(config.num_hidden_layers) {
  for (const int64_t layer_idx : config.kv_source_layer_ids)
    sources_.push_back({layer_idx, config.ratio(layer_idx)});
  const auto num_sources = int64_t(sources_.size());
  const int64_t num_numbers = 1 + num_sources * kSourceNumbers;
  const int64_t num_places = num_layers_ * kLayerPlaces + num_sources * kSourcePlaces;
  numbers_ = Buffer<int64_t>(num_numbers * max_rows, staging_memory(backend));
  places_ = Buffer<std::byte*>(num_places * max_rows, staging_memory(backend));
  if (backend == Backend::kCuda) {
    device_numbers_ = Buffer<int64_t>(numbers_.size(), Memory::kCuda);
    device_places_ = Buffer<std::byte*>(places_.size(), Memory::kCuda);
  }
  read_numbers_ = backend == Backend::kCuda ? device_numbers_.data() : numbers_.data();
  read_places_ = backend == Backend::kCuda ? device_places_.data() : places_.data();
}

int64_t DecodeTable::source_idx(int64_t layer_idx) const {
  const auto found = std::find_if(sources_.begin(), sources_.end(), [&](const Source& source) {
    return source.layer_idx == layer_idx;
  });
  ONECARD_ASSERT(found != sources_.end());
  return found - sources_.begin();
}

int64_t DecodeTable::source_number(int64_t layer_idx, SourceNumber what) const {
  return 1 + source_idx(layer_idx) * kSourceNumbers + what;
}

int64_t DecodeTable::source_place(int64_t layer_idx, SourcePlace what) const {
  return num_layers_ * kLayerPlaces + source_idx(layer_idx) * kSourcePlaces + what;
}

void DecodeTable::fill(std::span<const Segment> segments) {
  for (const Segment& segment : segments) {
    ONECARD_ASSERT(segment.num_rows == 1 && segment.first_row < max_rows_ &&
                   segment.state->num_ring_rows() == segments[0].state->num_ring_rows());
    SequenceState& state = *segment.state;
    const int64_t row = segment.first_row, position = segment.first_position;
    const auto number = [&](int64_t array) -> int64_t& {
      return numbers_[array * max_rows_ + row];
    };
    const auto place = [&](int64_t array) -> std::byte*& {
      return places_[array * max_rows_ + row];
    };
    number(0) = position;
    for (int64_t l = 0; l < num_layers_; ++l) {
      const ops::KvRows ring = state.window_ring(l);
      place(layer_place(l, kWindowRing)) = ring.data;
      place(layer_place(l, kWindowSlot)) = ring.row(position % state.num_ring_rows());
    }
    for (const auto& [l, ratio] : sources_) {
      const int64_t group = position / ratio;
      const bool completes = (position + 1) % ratio == 0;
      const ops::KvRows main = state.main_rows(l), index = state.index_rows(l);
      number(source_number(l, kVisible)) = (position + 1) / ratio;
      number(source_number(l, kGroupPosition)) = group * ratio;
      place(source_place(l, kMainRows)) = main.data;
      place(source_place(l, kIndexRows)) = index.data;
      place(source_place(l, kMainSlot)) = completes ? main.row(group) : nullptr;
      place(source_place(l, kIndexSlot)) = completes ? index.row(group) : nullptr;
      if (ratio == 1) continue;
      const ops::RowRing keys = state.open_keys(l), gates = state.open_gates(l);
      num_open_slots_ = keys.num_rows;
      place(source_place(l, kKeyRing)) = keys.data;
      place(source_place(l, kGateRing)) = gates.data;
      place(source_place(l, kKeySlot)) = keys.data + position % keys.num_rows * keys.row_bytes;
      place(source_place(l, kGateSlot)) = gates.data + position % gates.num_rows * gates.row_bytes;
    }
  }
}

void DecodeTable::queue(const Exec& exec) {
  if (exec.backend == Backend::kCpu) return;
  queue_copy(exec, device_numbers_.data(), numbers_.data(),
             size_t(numbers_.size()) * sizeof(int64_t));
  queue_copy(exec, device_places_.data(), places_.data(),
             size_t(places_.size()) * sizeof(std::byte*));
}

std::span<const int64_t> DecodeTable::numbers(int64_t array, int64_t begin, int64_t end) const {
  return {read_numbers_ + array * max_rows_ + begin, size_t(end - begin)};
}

std::span<std::byte* const> DecodeTable::places(int64_t array, int64_t begin, int64_t end) const {
  return {read_places_ + array * max_rows_ + begin, size_t(end - begin)};
}

namespace {
std::span<const std::byte* const> as_const(std::span<std::byte* const> places) {
  return {places.data(), places.size()};
}
}  // namespace

std::span<const int64_t> DecodeTable::positions(int64_t begin, int64_t end) const {
  return numbers(0, begin, end);
}
std::span<std::byte* const> DecodeTable::window_slots(int64_t layer_idx, int64_t begin,
                                                      int64_t end) const {
  return places(layer_place(layer_idx, kWindowSlot), begin, end);
}
std::span<const std::byte* const> DecodeTable::window_rings(int64_t layer_idx, int64_t begin,
                                                            int64_t end) const {
  return as_const(places(layer_place(layer_idx, kWindowRing), begin, end));
}
std::span<const int64_t> DecodeTable::num_visible(int64_t layer_idx, int64_t begin,
                                                  int64_t end) const {
  return numbers(source_number(layer_idx, kVisible), begin, end);
}
std::span<const int64_t> DecodeTable::group_positions(int64_t layer_idx, int64_t begin,
                                                      int64_t end) const {
  return numbers(source_number(layer_idx, kGroupPosition), begin, end);
}
std::span<const std::byte* const> DecodeTable::main_rows(int64_t layer_idx, int64_t begin,
                                                         int64_t end) const {
  return as_const(places(source_place(layer_idx, kMainRows), begin, end));
}
std::span<const std::byte* const> DecodeTable::index_rows(int64_t layer_idx, int64_t begin,
                                                          int64_t end) const {
  return as_const(places(source_place(layer_idx, kIndexRows), begin, end));
}
std::span<std::byte* const> DecodeTable::main_slots(int64_t layer_idx, int64_t begin,
                                                    int64_t end) const {
  return places(source_place(layer_idx, kMainSlot), begin, end);
}
std::span<std::byte* const> DecodeTable::index_slots(int64_t layer_idx, int64_t begin,
                                                     int64_t end) const {
  return places(source_place(layer_idx, kIndexSlot), begin, end);
}
ops::OpenGroups DecodeTable::open_groups(int64_t layer_idx, int64_t begin, int64_t end) const {
  return {positions(begin, end), as_const(places(source_place(layer_idx, kKeyRing), begin, end)),
          as_const(places(source_place(layer_idx, kGateRing), begin, end)), num_open_slots_};
}
std::span<std::byte* const> DecodeTable::key_slots(int64_t layer_idx, int64_t begin,
                                                   int64_t end) const {
  return places(source_place(layer_idx, kKeySlot), begin, end);
}
std::span<std::byte* const> DecodeTable::gate_slots(int64_t layer_idx, int64_t begin,
                                                    int64_t end) const {
  return places(source_place(layer_idx, kGateSlot), begin, end);
}

}  // namespace onecard::model
