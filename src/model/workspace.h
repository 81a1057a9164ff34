// The buffers behind a Workspace. Included by model/*.cpp alone.
#pragma once

#include <vector>

#include "io/engram_reader.h"
#include "model/step_context.h"
#include "tensor/buffer.h"

namespace onecard::model {

/// Rows that the wide intermediates of attention (queries of all heads, index scores) and of the
/// n-gram memory are computed for at a time; the last use of a row's values is in the same block.
constexpr int64_t kBlockRows = 64;

template <typename T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(int64_t rows, int64_t cols) : buffer_(rows * cols), cols_(cols) {}
  View<T> rows(int64_t num_rows) { return buffer_.view(num_rows, cols_); }
  int64_t cols() const { return cols_; }
  int64_t bytes() const { return buffer_.size() * int64_t(sizeof(T)); }

 private:
  Buffer<T> buffer_;
  int64_t cols_ = 0;
};

struct Workspace::Buffers {
  Buffers(const ModelConfig& config, int64_t max_rows, int64_t capacity_tokens);

  int64_t max_rows;

  Matrix<float> streams, mix, attn_pre, attn_post, attn_comb, ffn_pre, ffn_post, ffn_comb;
  Matrix<float> hidden, branch;
  std::vector<int64_t> positions;
  Matrix<float> angles_main, angles_compress;

  Buffer<std::byte> window_rows;
  Matrix<float> kv;
  Matrix<float> q_latent, q, heads, o_latent;
  Matrix<float> index_q, index_weights, index_scores, block_scores;
  std::vector<int64_t> num_visible;
  Matrix<int32_t> selected, candidates;
  std::vector<int32_t> selected_counts, candidate_counts;

  Matrix<float> group_keys, group_gates, latents, rotated, index_keys, group_angles;
  std::vector<int64_t> group_positions;

  Matrix<float> router_logits, router_weights;
  Matrix<int32_t> expert_ids;
  Matrix<float> shared_gate, shared_up;

  std::vector<int32_t> compressed_ids;
  std::vector<int64_t> engram_row_ids;
  std::vector<Matrix<float>> engram_rows;  // an engram layer each
  Matrix<float> engram_key_val;
  std::vector<io::EngramReader::Request> engram_requests;  // destroyed before what they fill
};

}  // namespace onecard::model
