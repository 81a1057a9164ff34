// The CUDA backend of the ops: same contracts as the public headers, shapes already checked; work
// is queued on exec.stream. Without CUDA, ops/no_cuda.cpp refuses instead. Included by ops/*.cpp
// alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/exec.h"
#include "ops/attention.h"
#include "ops/compressor.h"
#include "ops/hyper_connection.h"
#include "ops/indexer.h"
#include "ops/kv_rows.h"
#include "ops/linear.h"
#include "ops/routed_experts.h"
#include "ops/router.h"
#include "tensor/view.h"

namespace onecard::ops::cuda {

void rms_norm(const Exec& exec, View<const float> x, std::span<const float> w, float eps,
              View<float> out);
void linear_each(const Exec& exec, std::span<const LinearCall> calls);
void exl3_reconstruct_inner(const Exec& exec, const exl3::MatrixView& matrix, uint16_t* out);

void embed(const Exec& exec, const LinearWeight& table, std::span<const int32_t> token_ids,
           View<float> out);
void count_up(const Exec& exec, int64_t first, int64_t step, std::span<int64_t> out);
void visible_groups(const Exec& exec, int64_t first_position, int64_t ratio,
                    std::span<int64_t> out);
void rope_angles(const Exec& exec, std::span<const int64_t> positions,
                 std::span<const float> frequencies, View<float> out);
void rope(const Exec& exec, View<float> x, int64_t dim, View<const float> angles, bool inverse);

void pack_kv_rows(const Exec& exec, View<const float> x, const KvRows& out);
void unpack_kv_rows(const Exec& exec, const ConstKvRows& rows, View<float> out);
void fake_quantise(const Exec& exec, KvFormat format, int64_t dim, View<float> x);

void hc_begin(const Exec& exec, View<const float> y, View<float> x, View<float> mix);
void hc_coefficients(const Exec& exec, View<const float> x, const HcSite& site,
                     const HcCoefficients& out);
void hc_collapse_norm(const Exec& exec, View<const float> x, View<const float> mix,
                      std::span<const float> w, float eps, View<float> out);
void hc_expand(const Exec& exec, View<const float> y, View<const float> post,
               View<const float> comb, View<float> x);

void engram_gate_add(const Exec& exec, View<const float> key_val, std::span<const float> qk,
                     float eps, View<float> x);
void pool_groups(const Exec& exec, View<const float> keys, View<const float> gates, int64_t ratio,
                 View<float> out);
void pool_open_groups(const Exec& exec, View<const float> keys, View<const float> gates,
                      const OpenGroups& open, int64_t ratio, View<float> out);
void scatter_rows(const Exec& exec, const std::byte* rows, int64_t row_bytes,
                  std::span<std::byte* const> to);

/// key_rows: null, or the rows' own keys instead of keys.data.
void indexer_scores(const Exec& exec, View<const float> q, View<const float> w,
                    const ConstKvRows& keys, const std::byte* const* key_rows,
                    std::span<const int64_t> num_visible, const IndexLists* candidates,
                    int64_t block_size, View<float> scores);
void select_top_k(const Exec& exec, View<const float> scores, std::span<const int64_t> num_visible,
                  const IndexLists& out);
void select_candidate_blocks(const Exec& exec, View<const float> scores,
                             std::span<const int64_t> num_visible, int64_t block_size,
                             View<float> block_scores, const IndexLists& out);

void attention(const Exec& exec, View<const float> q, int64_t first_position,
               const AttentionKeys& keys, const IndexLists* selected, std::span<const float> sinks,
               View<float> out);
void attention_each(const Exec& exec, View<const float> q, const EachKeys& keys,
                    const IndexLists* selected, std::span<const float> sinks, View<float> out);

void route(const Exec& exec, View<const float> logits, std::span<const float> bias,
           const RouterOptions& options, View<int32_t> expert_ids, View<float> weights);
void swiglu(const Exec& exec, View<const float> gate, View<const float> up,
            std::span<const float> weights, float limit, View<float> out);

std::vector<std::byte> routed_experts_table(std::span<const exl3::ExpertView> experts,
                                            int& instance);
void routed_experts_add(const Exec& exec, const RoutedExperts& experts, View<const float> x,
                        View<const int32_t> expert_ids, View<const float> weights, View<float> out);
std::vector<std::byte> plain_experts_table(std::span<const PlainExpert> experts);
void plain_experts_add(const Exec& exec, const RoutedExperts& experts, View<const float> x,
                       View<const int32_t> expert_ids, View<const float> weights, View<float> out);
int64_t routed_experts_scratch_bytes(const RoutedExperts& experts, int64_t tokens,
                                     int64_t experts_per_token);

}  // namespace onecard::ops::cuda
