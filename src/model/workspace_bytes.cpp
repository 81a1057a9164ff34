#include "model/workspace_bytes.h"

#include <algorithm>

#include "model/workspace.h"

namespace onecard::model {
namespace {

int64_t buffer_bytes(const Workspace::Buffers& b) {
  int64_t bytes = b.window_rows.size() + b.packed_rows.size();
  for (const Matrix<float>* matrix : {&b.streams,
                                      &b.mix,
                                      &b.attn_pre,
                                      &b.attn_post,
                                      &b.attn_comb,
                                      &b.ffn_pre,
                                      &b.ffn_post,
                                      &b.ffn_comb,
                                      &b.hidden,
                                      &b.branch,
                                      &b.angles_main,
                                      &b.angles_compress,
                                      &b.kv,
                                      &b.q_latent,
                                      &b.q,
                                      &b.heads,
                                      &b.o_latent,
                                      &b.index_q,
                                      &b.index_weights,
                                      &b.index_scores,
                                      &b.block_scores,
                                      &b.group_keys,
                                      &b.group_gates,
                                      &b.latents,
                                      &b.rotated,
                                      &b.index_keys,
                                      &b.group_angles,
                                      &b.router_logits,
                                      &b.router_weights,
                                      &b.shared_gate,
                                      &b.shared_up,
                                      &b.engram_key_val})
    bytes += matrix->bytes();
  for (const StagedMatrix<float>& rows : b.engram_rows) bytes += rows.bytes();
  for (const Matrix<int32_t>* matrix :
       {&b.selected, &b.selected_counts, &b.candidates, &b.candidate_counts, &b.expert_ids})
    bytes += matrix->bytes();
  for (const Matrix<int64_t>* matrix : {&b.positions, &b.num_visible, &b.group_positions})
    bytes += matrix->bytes();
  return bytes + b.token_ids.bytes() + int64_t(b.engram_row_ids.size() * sizeof(int64_t));
}

}  // namespace

BytesByTokens workspace_bytes(const ModelConfig& config, int64_t max_rows) {
  // Multiples of the block of candidates, which is what the scores are laid out in.
  const int64_t step = std::max<int64_t>(config.candidate_block_size, 1) * 128;
  const int64_t selected = std::max(config.index_topk, config.candidate_topk_blocks);
  const int64_t base = (selected + step - 1) / step * step;
  const auto bytes = [&](int64_t capacity) {
    return double(buffer_bytes(Workspace::Buffers(config, max_rows, capacity, Backend::kCpu)));
  };
  const double small = bytes(base);
  const double per_token = (bytes(base + step) - small) / double(step);
  return {small - per_token * double(base), per_token};
}

}  // namespace onecard::model
