#include "engine/prefill_pass.h"

#include <algorithm>

#include "base/error.h"
#include "device/memory.h"
#include "ops/ring_rows.h"

namespace onecard::engine {
namespace {

/// An n-gram memory inside the decoder would need rows of tokens that the tail has left behind:
/// such a model runs as FULL, which gives the same logits.
bool has_decoder_engram(const model::ModelConfig& config) {
  return !config.engram_layer_ids.empty() &&
         config.engram_layer_ids.back() >= config.decoder_begin();
}

PrefillMode effective_mode(const model::ModelConfig& config, PrefillMode mode) {
  const bool has_decoder = config.decoder_begin() < config.num_hidden_layers;
  if (mode == PrefillMode::kExact && (!has_decoder || has_decoder_engram(config)))
    return PrefillMode::kFull;
  require(mode != PrefillMode::kBounded || (has_decoder && !has_decoder_engram(config)),
          ErrorCode::kUnsupported,
          "prefill: a model without a decoder half, or with n-gram memory in it, has no bounded "
          "mode");
  return mode;
}

int64_t tail_rows(const model::ModelConfig& config, PrefillMode mode) {
  switch (effective_mode(config, mode)) {
    case PrefillMode::kFull:
      return 0;
    case PrefillMode::kExact:
      return model::exact_tail_tokens(config);
    case PrefillMode::kBounded:
      return config.sliding_window;
  }
  return 0;
}

ops::RowRing ring_of(const Buffer<float>& rows, int64_t num_rows, int64_t width) {
  return {reinterpret_cast<std::byte*>(const_cast<float*>(rows.data())), num_rows,
          width * int64_t(sizeof(float))};
}

}  // namespace

EncoderTail::EncoderTail(const model::ModelConfig& config, PrefillMode mode, Backend backend)
    : capacity_rows_(tail_rows(config, mode)),
      stream_width_(config.hc_mult * config.hidden_size),
      mix_width_(config.hc_mult),
      streams_(capacity_rows_ * stream_width_, tensor_memory(backend)),
      mix_(capacity_rows_ * mix_width_, tensor_memory(backend)) {}

void EncoderTail::append(const Exec& exec, View<const float> streams, View<const float> mix) {
  ONECARD_ASSERT(streams.contiguous() && mix.contiguous());
  if (capacity_rows_ == 0) return;
  ops::store_ring_rows(exec, reinterpret_cast<const std::byte*>(streams.data), num_appended_,
                       streams.rows, ring_of(streams_, capacity_rows_, stream_width_));
  ops::store_ring_rows(exec, reinterpret_cast<const std::byte*>(mix.data), num_appended_, mix.rows,
                       ring_of(mix_, capacity_rows_, mix_width_));
  num_appended_ += streams.rows;
  num_rows_ = std::min(num_rows_ + streams.rows, capacity_rows_);
}

void EncoderTail::copy_to(const Exec& exec, View<float> streams, View<float> mix) const {
  ONECARD_ASSERT(streams.contiguous() && mix.contiguous() && streams.rows == num_rows_ &&
                 mix.rows == num_rows_);
  const int64_t first = num_appended_ - num_rows_;
  ops::load_ring_rows(exec, ring_of(streams_, capacity_rows_, stream_width_), first, num_rows_,
                      reinterpret_cast<std::byte*>(streams.data));
  ops::load_ring_rows(exec, ring_of(mix_, capacity_rows_, mix_width_), first, num_rows_,
                      reinterpret_cast<std::byte*>(mix.data));
}

int64_t EncoderTail::allocated_bytes() const {
  return (streams_.size() + mix_.size()) * int64_t(sizeof(float));
}

int64_t PrefillPass::workspace_rows(const model::ModelConfig& config, PrefillMode mode,
                                    int64_t chunk_tokens) {
  return std::max(chunk_tokens, tail_rows(config, mode));
}

PrefillPass::PrefillPass(const Exec& exec, const model::Model& model, model::Workspace& workspace,
                         model::SequenceState& sequence, EncoderTail& tail,
                         std::span<const int32_t> tokens, const PrefillOptions& options,
                         View<float> logits)
    : model_(model),
      sequence_(sequence),
      tail_(tail),
      options_(options),
      logits_(logits),
      num_tokens_(int64_t(tokens.size())) {
  const model::ModelConfig& config = model.config();
  options_.mode = effective_mode(config, options.mode);
  const bool full = options_.mode == PrefillMode::kFull;
  require(full || tail.capacity_rows() == tail_rows(config, options_.mode),
          ErrorCode::kInvalidArgument, "prefill: the tail was made for another mode");
  require(full || !options_.all_logits, ErrorCode::kInvalidArgument,
          "prefill: logits of every token come from a full prefill only");
  const int64_t num_logits = options_.all_logits ? num_tokens_ : options_.last ? 1 : 0;
  require(logits.rows == num_logits && (num_logits == 0 || logits.cols == config.vocab_size),
          ErrorCode::kInvalidArgument, "prefill: logits must be [tokens due, vocab_size]");
  if (full) {
    require(sequence.has_decoder_windows(), ErrorCode::kInvalidArgument,
            "prefill: without decoder windows no full prefill can follow");
  } else {
    tail.start_chunk(sequence.has_decoder_windows());
    if (options_.last)
      require(
          tail.decoder_windows_before() || tail.num_rows() + num_tokens_ >= tail.capacity_rows(),
          ErrorCode::kInvalidArgument,
          "prefill: without decoder windows more tokens have to follow");
  }

  ctx_.exec = exec;
  ctx_.workspace = &workspace;
  ctx_.observer = options.observer;
  ctx_.segments.push_back({.state = &sequence,
                           .first_row = 0,
                           .num_rows = num_tokens_,
                           .first_position = sequence.num_tokens()});
  require(num_tokens_ >= 1 &&
              workspace.max_rows() >= workspace_rows(config, options_.mode, num_tokens_),
          ErrorCode::kInvalidArgument, "prefill: no tokens, or more than the workspace has rows");
  x_ = workspace.streams(num_tokens_);
  mix_ = workspace.mix(num_tokens_);
  model.begin(ctx_, tokens, x_, mix_);
}

int64_t PrefillPass::num_layers_left() const {
  if (done_) return 0;
  const model::ModelConfig& config = model_.config();
  const bool whole = options_.mode == PrefillMode::kFull || options_.last;
  return (whole ? config.num_hidden_layers : config.decoder_begin()) - layer_idx_;
}

bool PrefillPass::run_layer() {
  require(!done_, ErrorCode::kInvalidArgument, "prefill: the pass is over");
  const model::ModelConfig& config = model_.config();
  int64_t num_out = x_.rows;
  const bool last_layer = layer_idx_ + 1 == config.num_hidden_layers;
  const bool in_tail = ctx_.global_rows_done;
  if (in_tail && options_.mode == PrefillMode::kExact)
    // What the layers above, and in the end the last token, still depend on.
    num_out = last_layer ? 1 : std::min(num_out, model::exact_tail_tokens(config, layer_idx_ + 1));
  if (in_tail && options_.mode == PrefillMode::kBounded && last_layer) num_out = 1;
  model_.run_layer(ctx_, layer_idx_, num_out, x_, mix_);
  ++layer_idx_;
  if (options_.mode != PrefillMode::kFull && layer_idx_ == config.decoder_begin()) end_encoder();
  if (layer_idx_ == config.num_hidden_layers) finish();
  return done_;
}

void PrefillPass::end_encoder() {
  model_.append_decoder_rows(ctx_, x_, mix_);
  tail_.append(ctx_.exec, x_, mix_);
  if (!options_.last) {
    sequence_.commit(num_tokens_, false, false);
    done_ = true;
    return;
  }
  const model::ModelConfig& config = model_.config();
  const int64_t num_rows = tail_.num_rows();
  const int64_t end = sequence_.num_tokens() + num_tokens_;
  x_ = ctx_.workspace->streams(num_rows);
  mix_ = ctx_.workspace->mix(num_rows);
  tail_.copy_to(ctx_.exec, x_, mix_);
  model::Segment& segment = ctx_.segments[0];
  segment.num_rows = num_rows;
  segment.first_position = end - num_rows;
  // Windows end where the replay begins; older rows count only if an earlier prefill or step of the
  // sequence left them in the ring.
  if (options_.mode == PrefillMode::kBounded)
    segment.window_begin = std::max<int64_t>(0, end - config.sliding_window);
  ctx_.global_rows_done = true;
  model_.resume(ctx_);
}

void PrefillPass::finish() {
  const int64_t num_rows = logits_.rows;
  if (num_rows > 0)
    model_.logits(ctx_, x_.rows_between(x_.rows - num_rows, x_.rows),
                  mix_.rows_between(mix_.rows - num_rows, mix_.rows), logits_);
  tail_.clear();
  sequence_.commit(num_tokens_, true, options_.mode == PrefillMode::kFull);
  done_ = true;
}

}  // namespace onecard::engine
