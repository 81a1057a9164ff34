#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/exec.h"
#include "ops/indexer.h"
#include "ops/kv_rows.h"
#include "tensor/view.h"

namespace onecard::ops {

/// What the queries of one sequence can see. Keys and values are the same rows.
struct AttentionKeys {
  ConstKvRows ring;  // the row of position p < chunk_begin is ring row p % num_ring_rows
  int64_t num_ring_rows = 1;
  ConstKvRows chunk;  // the row of position p >= chunk_begin is chunk row p - chunk_begin
  int64_t chunk_begin = 0;
  int64_t window = 128;  // query at t sees max(window_begin, t - window + 1) .. t
  int64_t window_begin = 0;
  ConstKvRows global;  // row g of group g; unused without selected groups
};

/// For the query of row t at position first_position + t, head h:
///   rows = window rows ++ global rows of selected[t];   a_j = q_h . rows_j / sqrt(dim)
///   out_h = sum_j exp(a_j) rows_j / (sum_j exp(a_j) + exp(sinks[h]))
/// one joint softmax; the sink adds no value. q, out: [tokens, heads * dim] f32, not the same;
/// sinks: [heads]; selected: null for a window-only layer.
void attention(const Exec& exec, View<const float> q, int64_t first_position,
               const AttentionKeys& keys, const IndexLists* selected, std::span<const float> sinks,
               View<float> out);

/// What queries of several sequences can see, one query each. Arrays of a query each.
struct EachKeys {
  std::span<const int64_t> positions;
  /// Window rows, the query's own among them: that of position p is row p % num_ring_rows.
  std::span<const std::byte* const> rings;
  ConstKvRows ring;  // their format; without data
  int64_t num_ring_rows = 1;
  int64_t window = 128;
  std::span<const std::byte* const> globals;  // row g of group g; empty without selected groups
  ConstKvRows global;                         // their format; without data
};

/// attention() for every query with the rows of its own sequence.
void attention_each(const Exec& exec, View<const float> q, const EachKeys& keys,
                    const IndexLists* selected, std::span<const float> sinks, View<float> out);

}  // namespace onecard::ops
