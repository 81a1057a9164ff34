#include "model/sequence_state.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace onecard::model {

SequenceState::SequenceState(const ModelConfig& config, const SequenceOptions& options)
    : options_(options),
      num_layers_(config.num_hidden_layers),
      decoder_begin_(config.decoder_begin()),
      sliding_window_(config.sliding_window),
      head_dim_(config.head_dim),
      index_head_dim_(config.index_head_dim),
      num_ring_rows_(config.sliding_window + options.max_rollback_tokens) {
  require(options.capacity_tokens >= 1 && options.max_rollback_tokens >= 0,
          ErrorCode::kInvalidArgument,
          "sequence state: at least one token of capacity, no negative rollback");
  window_format_ = ops::kv_format_for(ops::KvFormat::kFp8Block32, head_dim_);
  main_format_ = ops::kv_format_for(ops::KvFormat::kFp4Block16, head_dim_);
  index_format_ = ops::kv_format_for(ops::KvFormat::kFp4Block32, index_head_dim_);
  window_row_bytes_ = ops::kv_row_bytes(window_format_, head_dim_);
  main_row_bytes_ = ops::kv_row_bytes(main_format_, head_dim_);
  index_row_bytes_ = ops::kv_row_bytes(index_format_, index_head_dim_);

  const Memory memory = tensor_memory(options.backend);
  rings_ = Buffer<std::byte>(num_layers_ * num_ring_rows_ * window_row_bytes_, memory);
  source_of_.assign(size_t(num_layers_), -1);
  for (const int64_t layer_idx : config.kv_source_layer_ids) {
    Source source;
    source.ratio = config.ratio(layer_idx);
    const int64_t num_rows = options.capacity_tokens / source.ratio;
    source.main = Buffer<std::byte>(num_rows * main_row_bytes_, memory);
    source.index = Buffer<std::byte>(num_rows * index_row_bytes_, memory);
    if (source.ratio > 1) {
      num_open_slots_ = std::max(num_open_slots_, source.ratio - 1 + options.max_rollback_tokens);
      granularity_ = std::max(granularity_, source.ratio);
    }
    source_of_[size_t(layer_idx)] = int(sources_.size());
    sources_.push_back(std::move(source));
  }
  for (Source& source : sources_) {
    if (source.ratio == 1) continue;
    source.open_keys = Buffer<float>(num_open_slots_ * head_dim_, memory);
    source.open_gates = Buffer<float>(num_open_slots_ * head_dim_, memory);
  }
  look_back_ = Buffer<int32_t>(
      std::max<int64_t>(1, config.engram_max_ngram_size - 1 + options.max_rollback_tokens));
}

void SequenceState::clear() {
  num_tokens_ = 0;
  rollback_floor_ = 0;
  has_decoder_windows_ = true;
}

int64_t SequenceState::rollback_limit() const {
  return std::min(options_.max_rollback_tokens, num_tokens_ - rollback_floor_);
}

void SequenceState::rollback(int64_t num_tokens) {
  if (num_tokens < 0 || num_tokens > rollback_limit())
    throw Error(ErrorCode::kInvalidArgument, "rollback of " + std::to_string(num_tokens) +
                                                 " tokens: " + std::to_string(rollback_limit()) +
                                                 " can be taken back");
  num_tokens_ -= num_tokens;
  // What the rings held before the oldest token taken back is gone.
  rollback_floor_ =
      std::max(rollback_floor_, num_tokens_ + num_tokens - options_.max_rollback_tokens);
}

void SequenceState::commit(int64_t num_tokens, bool decoder, bool can_roll_back) {
  num_tokens_ += num_tokens;
  ONECARD_ASSERT(num_tokens_ <= options_.capacity_tokens);
  has_decoder_windows_ = decoder;
  if (!can_roll_back) rollback_floor_ = num_tokens_;
}

const SequenceState::Source& SequenceState::source(int64_t layer_idx) const {
  const int idx = source_of_[size_t(layer_idx)];
  ONECARD_ASSERT(idx >= 0);
  return sources_[size_t(idx)];
}

ops::KvRows SequenceState::window_ring(int64_t layer_idx) {
  return {rings_.data() + layer_idx * num_ring_rows_ * window_row_bytes_, window_row_bytes_,
          head_dim_, window_format_};
}

ops::KvRows SequenceState::main_rows(int64_t layer_idx) {
  return {const_cast<std::byte*>(source(layer_idx).main.data()), main_row_bytes_, head_dim_,
          main_format_};
}

ops::KvRows SequenceState::index_rows(int64_t layer_idx) {
  return {const_cast<std::byte*>(source(layer_idx).index.data()), index_row_bytes_, index_head_dim_,
          index_format_};
}

ops::RowRing SequenceState::open_keys(int64_t layer_idx) {
  return {reinterpret_cast<std::byte*>(const_cast<float*>(source(layer_idx).open_keys.data())),
          num_open_slots_, head_dim_ * int64_t(sizeof(float))};
}

ops::RowRing SequenceState::open_gates(int64_t layer_idx) {
  return {reinterpret_cast<std::byte*>(const_cast<float*>(source(layer_idx).open_gates.data())),
          num_open_slots_, head_dim_ * int64_t(sizeof(float))};
}

// Calls visit(data, bytes) for everything that a snapshot of `num_tokens` tokens holds, in order.
template <typename Visit>
void SequenceState::visit_snapshot(int64_t num_tokens, bool decoder, Visit&& visit) const {
  // The rows of the last `count` positions, in at most two runs.
  const auto ring_rows = [&](const auto* ring, int64_t num_slots, int64_t row_size, int64_t count) {
    int64_t begin = std::max<int64_t>(0, num_tokens - count);
    while (begin < num_tokens) {
      const int64_t end = std::min(num_tokens, begin / num_slots * num_slots + num_slots);
      visit(ring + begin % num_slots * row_size, size_t((end - begin) * row_size) * sizeof(*ring));
      begin = end;
    }
  };
  for (int64_t layer_idx = 0; layer_idx < (decoder ? num_layers_ : decoder_begin_); ++layer_idx)
    ring_rows(rings_.data() + layer_idx * num_ring_rows_ * window_row_bytes_, num_ring_rows_,
              window_row_bytes_, sliding_window_);
  for (const Source& source : sources_) {
    if (source.ratio == 1) continue;
    const int64_t num_open = num_tokens % source.ratio;
    ring_rows(source.open_keys.data(), num_open_slots_, head_dim_, num_open);
    ring_rows(source.open_gates.data(), num_open_slots_, head_dim_, num_open);
  }
  ring_rows(look_back_.data(), look_back_.size(), 1,
            look_back_.size() - options_.max_rollback_tokens);
}

Snapshot SequenceState::snapshot(Windows windows) const {
  const bool decoder = windows == Windows::kAll;
  require(!decoder || has_decoder_windows_, ErrorCode::kInvalidArgument,
          "snapshot: the decoder's windows are not there inside a prompt");
  Snapshot snapshot{num_tokens_, decoder, {}};
  visit_snapshot(num_tokens_, decoder, [&](const void* data, size_t size) {
    const size_t begin = snapshot.bytes.size();
    snapshot.bytes.resize(begin + size);
    copy_now(options_.backend, snapshot.bytes.data() + begin, data, size);
  });
  return snapshot;
}

void SequenceState::restore(const Snapshot& snapshot) {
  size_t expected = 0;
  if (snapshot.num_tokens >= 0 && snapshot.num_tokens <= options_.capacity_tokens)
    visit_snapshot(snapshot.num_tokens, snapshot.has_decoder_windows,
                   [&](const void*, size_t size) { expected += size; });
  if (expected != snapshot.bytes.size() || snapshot.num_tokens < 0 ||
      snapshot.num_tokens > options_.capacity_tokens)
    throw Error(ErrorCode::kInvalidArgument,
                "restore: a snapshot of " + std::to_string(snapshot.num_tokens) + " tokens and " +
                    std::to_string(snapshot.bytes.size()) + " bytes does not fit a sequence of " +
                    std::to_string(options_.capacity_tokens) + " tokens that expects " +
                    std::to_string(expected) + " bytes");
  const std::byte* next = snapshot.bytes.data();
  visit_snapshot(snapshot.num_tokens, snapshot.has_decoder_windows,
                 [&](const void* data, size_t size) {
                   // The buffers are this object's own.
                   copy_now(options_.backend, const_cast<void*>(data), next, size);
                   next += size;
                 });
  num_tokens_ = snapshot.num_tokens;
  rollback_floor_ = num_tokens_;
  has_decoder_windows_ = snapshot.has_decoder_windows || num_tokens_ == 0;
}

template <typename Visit>
void SequenceState::visit_global_rows(int64_t begin, int64_t end, Visit&& visit) const {
  require(
      0 <= begin && begin <= end && end <= options_.capacity_tokens && begin % granularity_ == 0,
      ErrorCode::kInvalidArgument,
      "global rows: the range must lie inside the capacity and begin with a group");
  for (const Source& source : sources_) {
    const int64_t first = begin / source.ratio;
    const int64_t count = std::max<int64_t>(0, end / source.ratio - first);
    visit(source.main.data() + first * main_row_bytes_, size_t(count * main_row_bytes_));
    visit(source.index.data() + first * index_row_bytes_, size_t(count * index_row_bytes_));
  }
}

int64_t SequenceState::global_rows_bytes(int64_t begin, int64_t end) const {
  int64_t bytes = 0;
  visit_global_rows(begin, end, [&](const std::byte*, size_t size) { bytes += int64_t(size); });
  return bytes;
}

void SequenceState::read_global_rows(int64_t begin, int64_t end, std::span<std::byte> out) const {
  require(int64_t(out.size()) == global_rows_bytes(begin, end), ErrorCode::kInvalidArgument,
          "read_global_rows: out has another size than the rows");
  std::byte* next = out.data();
  visit_global_rows(begin, end, [&](const std::byte* data, size_t size) {
    copy_now(options_.backend, next, data, size);
    next += size;
  });
}

void SequenceState::write_global_rows(int64_t begin, int64_t end,
                                      std::span<const std::byte> bytes) {
  require(int64_t(bytes.size()) == global_rows_bytes(begin, end), ErrorCode::kInvalidArgument,
          "write_global_rows: bytes have another size than the rows");
  const std::byte* next = bytes.data();
  visit_global_rows(begin, end, [&](const std::byte* data, size_t size) {
    copy_now(options_.backend, const_cast<std::byte*>(data), next, size);
    next += size;
  });
}

int64_t SequenceState::used_bytes() const {
  int64_t bytes = num_layers_ * std::min(num_tokens_, sliding_window_) * window_row_bytes_;
  for (const Source& source : sources_)
    bytes += num_tokens_ / source.ratio * (main_row_bytes_ + index_row_bytes_);
  return bytes;
}

int64_t SequenceState::allocated_bytes() const {
  int64_t bytes = rings_.size() + look_back_.size() * int64_t(sizeof(int32_t));
  for (const Source& source : sources_)
    bytes += source.main.size() + source.index.size() +
             (source.open_keys.size() + source.open_gates.size()) * int64_t(sizeof(float));
  return bytes;
}

int64_t exact_tail_tokens(const ModelConfig& config, int64_t layer_idx) {
  return config.sliding_window +
         (config.num_hidden_layers - 1 - layer_idx) * (config.sliding_window - 1);
}

int64_t exact_tail_tokens(const ModelConfig& config) {
  return exact_tail_tokens(config, config.decoder_begin());
}

}  // namespace onecard::model
