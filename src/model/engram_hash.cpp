#include "model/engram_hash.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"
#include "io/file.h"
#include "model/numpy_random.h"

namespace onecard::model {
namespace {

constexpr int64_t kSeedFactor = 10007;  // part of the checkpoint's definition

bool is_prime(int64_t n) {
  if (n < 2) return false;
  for (int64_t divisor = 2; divisor * divisor <= n; ++divisor)
    if (n % divisor == 0) return false;
  return true;
}

}  // namespace

EngramHash::EngramHash(const ModelConfig& config, std::vector<int32_t> token_map,
                       const std::string& source)
    : num_orders_(config.engram_max_ngram_size - 1),
      num_heads_(config.engram_n_heads),
      token_map_(std::move(token_map)) {
  if (int64_t(token_map_.size()) < config.vocab_size)
    throw Error(ErrorCode::kDataCorrupt, source + ": " + std::to_string(token_map_.size()) +
                                             " ids for a vocabulary of " +
                                             std::to_string(config.vocab_size));
  for (const int32_t id : token_map_)
    if (id < 0 || id >= config.engram_compressed_vocab_size)
      throw Error(ErrorCode::kDataCorrupt,
                  source + ": compressed id " + std::to_string(id) + " outside [0, " +
                      std::to_string(config.engram_compressed_vocab_size) + ")");
  pad_ = token_map_[size_t(config.engram_pad_token_id)];

  // Primes ascend over all layers, orders and heads, and none is used twice.
  int64_t candidate = config.engram_vocab_size - 1;
  const int64_t bound =
      std::numeric_limits<int64_t>::max() / config.engram_compressed_vocab_size / 2;
  for (const int64_t layer_idx : config.engram_layer_ids) {
    Layer layer;
    int64_t offset = 0;
    for (int64_t column = 0; column < num_columns(); ++column) {
      do ++candidate;
      while (!is_prime(candidate));
      layer.primes.push_back(candidate);
      layer.offsets.push_back(offset);
      offset += candidate;
    }
    layer.multipliers =
        numpy_integers(uint64_t(kSeedFactor * layer_idx), bound, config.engram_max_ngram_size);
    for (int64_t& multiplier : layer.multipliers) multiplier = 2 * multiplier + 1;
    layers_.push_back(std::move(layer));
  }
}

int64_t EngramHash::num_rows(int64_t engram_idx) const {
  const Layer& layer = layers_[size_t(engram_idx)];
  return layer.offsets.back() + layer.primes.back();
}

void EngramHash::rows(int64_t engram_idx, std::span<const int32_t> recent,
                      std::span<int64_t> out) const {
  const Layer& layer = layers_[size_t(engram_idx)];
  ONECARD_ASSERT(!recent.empty() && int64_t(out.size()) == num_columns());
  // Every product is below 2^63: ids are below the compressed vocabulary that bounds the
  // multipliers.
  int64_t hash = recent[0] * layer.multipliers[0];
  size_t column = 0;
  for (size_t k = 1; k <= size_t(num_orders_); ++k) {
    hash ^= (k < recent.size() ? recent[k] : pad_) * layer.multipliers[k];
    for (int64_t head = 0; head < num_heads_; ++head, ++column)
      out[column] = hash % layer.primes[column] + layer.offsets[column];
  }
}

std::vector<int32_t> load_engram_token_map(const std::string& directory) {
  constexpr int64_t kMaxBytes = 64 << 20;
  const std::string path = directory + "/engram_token_map.i32";
  const std::string bytes = io::read_text_file(path, kMaxBytes);
  if (bytes.size() % sizeof(int32_t) != 0)
    throw Error(ErrorCode::kDataCorrupt,
                path + ": " + std::to_string(bytes.size()) + " bytes are no whole int32 numbers");
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

}  // namespace onecard::model
