#include "model/step_context.h"

#include <algorithm>

#include "base/error.h"
#include "model/workspace.h"

namespace onecard::model {

Workspace::Buffers::Buffers(const ModelConfig& config, int64_t max_rows_in, int64_t capacity_tokens,
                            Backend backend)
    : max_rows(max_rows_in) {
  const Memory memory = tensor_memory(backend);
  const int64_t rows = max_rows;
  const int64_t block = std::min(rows, kBlockRows);
  const int64_t hc = config.hc_mult;
  const auto floats = [&](int64_t num_rows, int64_t cols) {
    return Matrix<float>(num_rows, cols, memory);
  };

  streams = floats(rows, hc * config.hidden_size);
  mix = floats(rows, hc);
  attn_pre = floats(rows, hc);
  attn_post = floats(rows, hc);
  attn_comb = floats(rows, hc * hc);
  ffn_pre = floats(rows, hc);
  ffn_post = floats(rows, hc);
  ffn_comb = floats(rows, hc * hc);
  hidden = floats(rows, config.hidden_size);
  branch = floats(rows, config.hidden_size);
  token_ids = StagedMatrix<int32_t>(rows, 1, backend);
  positions = Matrix<int64_t>(rows, 1, memory);
  angles_main = floats(rows, config.qk_rope_head_dim);
  angles_compress = floats(rows, config.qk_rope_head_dim);

  window_rows = Buffer<std::byte>(
      rows * ops::kv_row_bytes(ops::kv_format_for(ops::KvFormat::kFp8Block32, config.head_dim),
                               config.head_dim),
      memory);
  kv = floats(block, config.head_dim);
  q_latent = floats(block, config.q_lora_rank);
  q = floats(block, config.num_attention_heads * config.head_dim);
  heads = floats(block, config.num_attention_heads * config.head_dim);
  o_latent = floats(block, config.o_groups * config.o_lora_rank);
  output_groups.reserve(size_t(config.o_groups));

  const int64_t max_groups = capacity_tokens;  // ratio 1
  index_q = floats(block, config.index_n_heads * config.index_head_dim);
  index_weights = floats(block, config.index_n_heads);
  index_scores = floats(block, max_groups);
  block_scores = floats(block, max_groups / config.candidate_block_size + 1);
  num_visible = Matrix<int64_t>(block, 1, memory);
  selected = Matrix<int32_t>(rows, std::min(config.index_topk, max_groups), memory);
  selected_counts = Matrix<int32_t>(rows, 1, memory);
  candidates = Matrix<int32_t>(rows, std::min(config.candidate_topk_blocks, max_groups), memory);
  candidate_counts = Matrix<int32_t>(rows, 1, memory);

  const int64_t group_rows = block + 1;  // and the open group's token
  group_keys = floats(group_rows, config.head_dim);
  group_gates = floats(group_rows, config.head_dim);
  latents = floats(group_rows, config.head_dim);
  rotated = floats(group_rows, config.head_dim);
  index_keys = floats(group_rows, config.index_head_dim);
  group_angles = floats(group_rows, config.qk_rope_head_dim);
  group_positions = Matrix<int64_t>(group_rows, 1, memory);
  const auto row_bytes = [](ops::KvFormat format, int64_t dim) {
    return ops::kv_row_bytes(ops::kv_format_for(format, dim), dim);
  };
  packed_rows = Buffer<std::byte>(
      block * std::max(row_bytes(ops::KvFormat::kFp4Block16, config.head_dim),
                       row_bytes(ops::KvFormat::kFp4Block32, config.index_head_dim)),
      memory);

  router_logits = floats(rows, config.n_routed_experts);
  router_weights = floats(rows, config.num_experts_per_tok);
  expert_ids = Matrix<int32_t>(rows, config.num_experts_per_tok, memory);
  shared_gate = floats(block, config.moe_intermediate_size * config.n_shared_experts);
  shared_up = floats(block, config.moe_intermediate_size * config.n_shared_experts);

  engram_row_ids.resize(size_t(rows * config.engram_num_columns()));
  for (size_t i = 0; i < config.engram_layer_ids.size(); ++i)
    engram_rows.emplace_back(rows, config.engram_num_columns() * config.engram_head_dim, backend);
  engram_key_val = floats(block, (hc + 1) * config.hidden_size);
  engram_requests.resize(config.engram_layer_ids.size());
  if (memory != Memory::kHost) logits = floats(block, config.vocab_size);
}

Workspace::Workspace(const ModelConfig& config, int64_t max_rows, int64_t capacity_tokens,
                     Backend backend)
    : max_rows_(max_rows), capacity_tokens_(capacity_tokens) {
  require(max_rows >= 1 && capacity_tokens >= 1, ErrorCode::kInvalidArgument,
          "workspace: at least one row and one token of capacity");
  buffers_ = std::make_unique<Buffers>(config, max_rows, capacity_tokens, backend);
}
Workspace::~Workspace() = default;
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;

View<float> Workspace::streams(int64_t num_rows) { return buffers_->streams.rows(num_rows); }
View<float> Workspace::mix(int64_t num_rows) { return buffers_->mix.rows(num_rows); }

int64_t StepContext::num_rows() const {
  return segments.empty() ? 0 : segments.back().first_row + segments.back().num_rows;
}

void StepContext::observe(int64_t layer_idx, std::string_view name,
                          View<const float> values) const {
  if (observer == nullptr) return;
  if (exec.backend == Backend::kCpu) return observer->observe(layer_idx, name, values);
  ONECARD_ASSERT(values.contiguous());
  Buffer<float> copy(values.rows * values.cols);
  queue_copy(exec, copy.data(), values.data, size_t(copy.size()) * sizeof(float));
  synchronise(exec);
  observer->observe(layer_idx, name, copy.view(values.rows, values.cols));
}

void StepContext::observe_routed(int64_t layer_idx, View<const int32_t> expert_ids) const {
  if (observer == nullptr) return;
  Buffer<int32_t> copy(expert_ids.rows * expert_ids.cols);
  queue_copy(exec, copy.data(), expert_ids.data, size_t(copy.size()) * sizeof(int32_t));
  synchronise(exec);
  observer->routed(layer_idx, copy.view(expert_ids.rows, expert_ids.cols));
}

void StepContext::keep_last(int64_t num_kept) {
  const int64_t all = num_rows();
  const int64_t dropped = all - num_kept;
  if (dropped == 0) return;
  ONECARD_ASSERT(dropped > 0 && segments.size() == 1);
  segments[0].num_rows = num_kept;
  segments[0].first_position += dropped;
  angles_main = angles_main.rows_between(dropped, all);
  angles_compress = angles_compress.rows_between(dropped, all);
  if (selected.ids.rows == all) selected = selected.rows_between(dropped, all);
  if (candidates.ids.rows == all) candidates = candidates.rows_between(dropped, all);
}

}  // namespace onecard::model
