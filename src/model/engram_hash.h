// From token ids to rows of the n-gram tables. Every order n = 2.. of every engram layer hashes the
// last n compressed ids, each of its heads modulo a prime of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"

namespace onecard::model {

class EngramHash {
 public:
  /// token_map: compressed id of each token id. Throws kDataCorrupt when it does not fit the
  /// configuration; `source` names it.
  EngramHash(const ModelConfig& config, std::vector<int32_t> token_map, const std::string& source);

  int32_t compressed_id(int32_t token_id) const { return token_map_[size_t(token_id)]; }
  /// How many earlier ids a hash looks at: the longest n-gram less one.
  int64_t look_back() const { return num_orders_; }
  int64_t num_columns() const { return num_orders_ * num_heads_; }
  /// Rows that the table of the engram_idx-th layer must have.
  int64_t num_rows(int64_t engram_idx) const;

  /// out[c] = table row of column c, order by order, for the id c[0] with c[k] the id k tokens
  /// before it. `recent` holds c[0], c[1], ...; ids before the sequence's start are left out (no
  /// n-gram reaches over it).
  void rows(int64_t engram_idx, std::span<const int32_t> recent, std::span<int64_t> out) const;

  std::span<const int64_t> primes(int64_t engram_idx) const { return layers_[engram_idx].primes; }
  std::span<const int64_t> multipliers(int64_t engram_idx) const {
    return layers_[engram_idx].multipliers;
  }

 private:
  struct Layer {
    std::vector<int64_t> primes;       // [columns]
    std::vector<int64_t> offsets;      // [columns]: where the column's rows begin in the table
    std::vector<int64_t> multipliers;  // [look_back + 1]
  };
  int64_t num_orders_ = 0;
  int64_t num_heads_ = 0;
  int32_t pad_ = 0;
  std::vector<int32_t> token_map_;
  std::vector<Layer> layers_;
};

/// engram_token_map.i32 of a model directory: little-endian int32, one a token id. Throws kNotFound
/// or kDataCorrupt.
std::vector<int32_t> load_engram_token_map(const std::string& directory);

}  // namespace onecard::model
