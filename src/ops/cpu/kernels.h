// The CPU backend of the ops: same contracts as the public headers, shapes already checked.
// Included by ops/*.cpp alone.
#pragma once

#include <span>

#include "device/exec.h"
#include "ops/attention.h"
#include "ops/hyper_connection.h"
#include "ops/indexer.h"
#include "ops/kv_rows.h"
#include "ops/linear.h"
#include "ops/router.h"
#include "tensor/view.h"

namespace onecard::ops::cpu {

void rms_norm(const Exec& exec, View<const float> x, std::span<const float> w, float eps,
              View<float> out);
void linear(const Exec& exec, View<const float> x, const LinearWeight& w, View<float> out);
void widen(const LinearWeight& w, View<float> out);

void rope(const Exec& exec, View<float> x, int64_t dim, View<const float> angles, bool inverse);

void pack_kv_rows(const Exec& exec, View<const float> x, const KvRows& out);
void unpack_kv_rows(const Exec& exec, const ConstKvRows& rows, View<float> out);
void fake_quantise(const Exec& exec, KvFormat format, int64_t dim, View<float> x);

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

void indexer_scores(const Exec& exec, View<const float> q, View<const float> w,
                    const ConstKvRows& keys, std::span<const int64_t> num_visible,
                    const IndexLists* candidates, int64_t block_size, View<float> scores);
void select_top_k(const Exec& exec, View<const float> scores, std::span<const int64_t> num_visible,
                  const IndexLists& out);
void select_candidate_blocks(const Exec& exec, View<const float> scores,
                             std::span<const int64_t> num_visible, int64_t block_size,
                             View<float> block_scores, const IndexLists& out);

void attention(const Exec& exec, View<const float> q, int64_t first_position,
               const AttentionKeys& keys, const IndexLists* selected, std::span<const float> sinks,
               View<float> out);

void route(const Exec& exec, View<const float> logits, std::span<const float> bias,
           const RouterOptions& options, View<int32_t> expert_ids, View<float> weights);

void swiglu(const Exec& exec, View<const float> gate, View<const float> up,
            std::span<const float> weights, float limit, View<float> out);

}  // namespace onecard::ops::cpu
