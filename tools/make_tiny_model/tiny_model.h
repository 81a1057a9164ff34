// Small checkpoints with deterministic weights, for tests: every mechanism of the model in a few
// megabytes. A weight is a function of its tensor's name and its position, so that any other
// program can make the same ones:
//   h = FNV-1a 64 of the name;  z = splitmix64's output for the state h + (i + 1) * its increment
//   u = (z >> 40) / 2^24;       value = f32((2u - 1) * A + B)
// with A and B by the kind of tensor (weight_range). A seed other than 0 puts "<seed>:" before the
// name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config.h"

namespace onecard::tiny {

/// How matrices are stored. Norms, mixing and other small tensors stay plain.
enum class Storage {
  kF32,   // everything f32: the weights as generated
  kBf16,  // matrices and norms bf16, the rest f32
  kFp8,   // as the published checkpoint: FP8 matrices and engram tables, FP4 experts, some bf16
  kExl3,  // as the EXL3 pack: random trellis words of the right size; dimensions multiples of 128
};

struct TinyOptions {
  Storage storage = Storage::kF32;
  uint64_t seed = 0;
  int expert_bits = 3;  // kExl3
  int dense_bits = 5;   // kExl3
  int64_t shard_bytes = int64_t{1} << 30;
};

/// "t-q", "t-nq", "t-qm", "t-nq2", "tiers".
std::vector<std::string> preset_names();
/// Throws kNotFound for another name. t-qm is t-q: they differ by the tokens that tests feed.
/// t-nq2 is t-nq with other clamps, epsilons and iterations. tiers is for EXL3: 32 experts of 512.
model::ModelConfig preset_config(std::string_view name);

/// `config` with members of text_config replaced: a name and its JSON value. engram_num_embeddings
/// follows from the other engram members unless it is among them. Throws as parse_model_config.
model::ModelConfig with_members(const model::ModelConfig& config,
                                std::span<const std::pair<std::string, std::string>> members);

/// The number of rows of each engram table: the sum of its bucket sizes, which are the smallest
/// primes from engram_vocab_size on that no earlier order or layer took.
std::vector<int64_t> engram_rows(const model::ModelConfig& config);

/// A and B of a tensor; `in` is its last dimension.
std::pair<double, double> weight_range(std::string_view name, int64_t in);
/// The first `out.size()` weights of a tensor whose last dimension is `in`.
void fill_weights(std::string_view name, int64_t in, uint64_t seed, std::span<float> out);

/// Writes config.json, the shards and engram_token_map.i32: (7 x) mod engram_compressed_vocab_size
/// for every token x, little-endian int32. Throws kInvalidArgument when a matrix cannot be stored
/// so, kIo.
void write_checkpoint(const std::string& directory, const model::ModelConfig& config,
                      const TinyOptions& options = {});

}  // namespace onecard::tiny
