// The buffers behind a Workspace. Included by model/*.cpp alone.
#pragma once

#include <vector>

#include "device/memory.h"
#include "io/engram_reader.h"
#include "model/step_context.h"
#include "ops/linear.h"
#include "tensor/buffer.h"

namespace onecard::model {

/// Rows that the wide intermediates of attention (queries of all heads, index scores) and of the
/// n-gram memory are computed for at a time; the last use of a row's values is in the same block.
constexpr int64_t kBlockRows = 64;

template <typename T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(int64_t rows, int64_t cols, Memory memory) : buffer_(rows * cols, memory), cols_(cols) {}
  View<T> rows(int64_t num_rows) { return buffer_.view(num_rows, cols_); }
  /// Of a single column: the first `size` values.
  std::span<T> values(int64_t size) { return buffer_.span().first(size_t(size)); }
  int64_t cols() const { return cols_; }
  int64_t bytes() const { return buffer_.size() * int64_t(sizeof(T)); }

 private:
  Buffer<T> buffer_;
  int64_t cols_ = 0;
};

/// Rows that the host fills and ops read: where ops run on the host, one and the same memory.
template <typename T>
class StagedMatrix {
 public:
  StagedMatrix() = default;
  StagedMatrix(int64_t rows, int64_t cols, Backend backend)
      : host_(rows, cols, staging_memory(backend)) {
    if (backend == Backend::kCuda) device_ = Matrix<T>(rows, cols, Memory::kCuda);
  }
  /// To be filled. Of a device: not before it has what was queued from here earlier.
  View<T> host_rows(int64_t num_rows) { return host_.rows(num_rows); }
  /// What was filled, for the ops of `exec`.
  View<T> rows(const Exec& exec, int64_t num_rows) {
    if (exec.backend == Backend::kCpu) return host_.rows(num_rows);
    const View<T> from = host_.rows(num_rows), to = device_.rows(num_rows);
    queue_copy(exec, to.data, from.data, size_t(num_rows * host_.cols()) * sizeof(T));
    return to;
  }
  int64_t bytes() const { return host_.bytes(); }  // of one of the two

 private:
  Matrix<T> host_, device_;
};

struct Workspace::Buffers {
  Buffers(const ModelConfig& config, int64_t max_rows, int64_t capacity_tokens, Backend backend);

  int64_t max_rows;

  Matrix<float> streams, mix, attn_pre, attn_post, attn_comb, ffn_pre, ffn_post, ffn_comb;
  Matrix<float> hidden, branch;
  StagedMatrix<int32_t> token_ids;
  Matrix<int64_t> positions;
  Matrix<float> angles_main, angles_compress;

  Buffer<std::byte> window_rows;
  Matrix<float> kv;
  Matrix<float> q_latent, q, heads, o_latent;
  std::vector<ops::LinearCall> output_groups;  // of one call; room is reserved
  Matrix<float> index_q, index_weights, index_scores, block_scores;
  Matrix<int64_t> num_visible;
  Matrix<int32_t> selected, candidates;
  Matrix<int32_t> selected_counts, candidate_counts;

  Matrix<float> group_keys, group_gates, latents, rotated, index_keys, group_angles;
  Matrix<int64_t> group_positions;
  Buffer<std::byte> packed_rows;  // on their way to the sequences

  Matrix<float> router_logits, router_weights;
  Matrix<int32_t> expert_ids;
  Matrix<float> shared_gate, shared_up;

  std::vector<int64_t> engram_row_ids;
  std::vector<StagedMatrix<float>> engram_rows;  // an engram layer each
  Matrix<float> engram_key_val;
  std::vector<io::EngramReader::Request> engram_requests;  // destroyed before what they fill

  Matrix<float> logits;  // of a block of rows on their way to the host
};

}  // namespace onecard::model
