// Everything that one sequence carries between steps: packed KV rows, sliding windows, open groups,
// the n-gram look-back and the position. Owned by the engine thread; a step allocates nothing here.
//
// Global rows grow by position; everything else is a ring by position, large enough for the window
// and for `max_rollback_tokens` more, so that taking tokens back only moves the position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/memory.h"
#include "model/config.h"
#include "ops/kv_rows.h"
#include "ops/ring_rows.h"
#include "tensor/buffer.h"
#include "tensor/view.h"

namespace onecard::model {

struct SequenceOptions {
  int64_t capacity_tokens = 0;      // prompt and answer together
  int64_t max_rollback_tokens = 0;  // how many of the last tokens rollback() can take back at once
  Backend backend = Backend::kCpu;  // whose ops read and write the rows
};

/// What restore() needs beside the global rows: windows, open groups, look-back, position.
struct Snapshot {
  int64_t num_tokens = 0;
  bool has_decoder_windows = false;
  std::vector<std::byte> bytes;
};

class SequenceState {
 public:
  /// Throws kInvalidArgument on a capacity below 1.
  SequenceState(const ModelConfig& config, const SequenceOptions& options);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t capacity_tokens() const { return options_.capacity_tokens; }
  /// Tokens that still fit.
  int64_t room_tokens() const { return capacity_tokens() - num_tokens_; }
  /// False after a restore from encoder windows alone: a prefill of at least
  /// exact_tail_tokens(config) tokens has to follow.
  bool has_decoder_windows() const { return has_decoder_windows_; }

  /// Forgets the sequence; memory stays.
  void clear();

  /// Takes the last `num_tokens` back, as if they had never been computed: tokens of decode steps
  /// or of a FULL prefill, not beyond the last EXACT or BOUNDED prefill or restore, and at most
  /// max_rollback_tokens behind the greatest length since. Throws kInvalidArgument otherwise.
  void rollback(int64_t num_tokens);
  /// How many tokens rollback() would accept now.
  int64_t rollback_limit() const;

  /// A copy of all but the global rows. With kEncoder it holds the encoder's windows only (inside
  /// a prompt the decoder has not run).
  enum class Windows { kEncoder, kAll };
  Snapshot snapshot(Windows windows) const;
  /// Back to the snapshot's position. The global rows of its tokens must be in place: still there,
  /// or written by write_global_rows(). Throws kInvalidArgument when the snapshot is of another
  /// configuration or does not fit.
  void restore(const Snapshot& snapshot);

  /// Bytes of the global rows of tokens [begin, end), source by source: the groups that begin and
  /// end there. `begin` is a multiple of global_row_granularity().
  int64_t global_rows_bytes(int64_t begin, int64_t end) const;
  int64_t global_row_granularity() const { return granularity_; }
  void read_global_rows(int64_t begin, int64_t end, std::span<std::byte> out) const;
  void write_global_rows(int64_t begin, int64_t end, std::span<const std::byte> bytes);

  /// Bytes that the tokens so far occupy, and bytes allocated.
  int64_t used_bytes() const;
  int64_t allocated_bytes() const;

  // For the layers. `layer_idx` is a kv source where it concerns global rows and groups.

  /// The window ring of a layer: the row of position p is ring row p % num_ring_rows().
  ops::KvRows window_ring(int64_t layer_idx);
  int64_t num_ring_rows() const { return num_ring_rows_; }
  /// Row g belongs to the group of tokens [g*r, g*r + r).
  ops::KvRows main_rows(int64_t layer_idx);
  ops::KvRows index_rows(int64_t layer_idx);
  /// Keys and gates of the compressor, f32 [head_dim] a token. Where the ratio is above 1.
  ops::RowRing open_keys(int64_t layer_idx);
  ops::RowRing open_gates(int64_t layer_idx);
  /// Compressed ids of the last tokens, on the host: position p is element p % size.
  std::span<int32_t> look_back() { return look_back_.span(); }

  /// The pass or step is over: `num_tokens` more tokens are in place. `decoder`: the decoder's
  /// windows have them too. `can_roll_back`: every layer ran on every one of them.
  void commit(int64_t num_tokens, bool decoder, bool can_roll_back);

 private:
  struct Source {
    int64_t ratio = 1;
    Buffer<std::byte> main;
    Buffer<std::byte> index;
    Buffer<float> open_keys;
    Buffer<float> open_gates;
  };
  template <typename Visit>
  void visit_snapshot(int64_t num_tokens, bool decoder, Visit&& visit) const;
  template <typename Visit>
  void visit_global_rows(int64_t begin, int64_t end, Visit&& visit) const;
  const Source& source(int64_t layer_idx) const;

  SequenceOptions options_;
  int64_t num_layers_ = 0;
  int64_t decoder_begin_ = 0;
  int64_t sliding_window_ = 0;
  int64_t head_dim_ = 0;
  int64_t index_head_dim_ = 0;
  int64_t num_ring_rows_ = 0;
  int64_t num_open_slots_ = 0;
  int64_t granularity_ = 1;
  ops::KvFormat window_format_{}, main_format_{}, index_format_{};
  int64_t window_row_bytes_ = 0, main_row_bytes_ = 0, index_row_bytes_ = 0;

  Buffer<std::byte> rings_;     // [num_layers, num_ring_rows] rows
  std::vector<int> source_of_;  // [num_layers]: position in sources_, or -1
  std::vector<Source> sources_;
  Buffer<int32_t> look_back_;
  int64_t num_tokens_ = 0;
  int64_t rollback_floor_ = 0;  // no rollback below this position
  bool has_decoder_windows_ = true;
};

/// Rows that decoder layer `layer_idx` is fed in an EXACT prefill, so that the last token's logits
/// are those of a FULL one: W + (L-1-j)(W-1) for the j-th of L decoder layers.
int64_t exact_tail_tokens(const ModelConfig& config, int64_t layer_idx);
/// The largest of them.
int64_t exact_tail_tokens(const ModelConfig& config);

}  // namespace onecard::model
