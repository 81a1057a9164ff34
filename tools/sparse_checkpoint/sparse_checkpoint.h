// Checkpoints of full size that take no room: files with the real names, shapes, dtypes and
// headers, whose data are holes. They prove that the loader accounts for every tensor of a
// checkpoint of half a terabyte, on any machine, in seconds.
#pragma once

#include <string>
#include <vector>

#include "io/safetensors_writer.h"
#include "model/config.h"

namespace onecard::sparse {

/// The checkpoint as published, in its 48 shards: FP8 matrices, FP4 experts, FP8 engram tables,
/// vision and draft layers.
std::vector<io::ShardSpec> official_shards(const model::ModelConfig& config);

/// The EXL3 pack at 3 bits an expert weight: a shard a layer and one for the rest, 41 in all; wo_a
/// in slices, no engram tables, no gate.bias_vl.
std::vector<io::ShardSpec> exl3_shards(const model::ModelConfig& config);

/// Writes the shards as sparse files, their index and config.json. Throws kIo; a file system
/// without sparse files runs full.
void write_sparse(const std::string& directory, const std::vector<io::ShardSpec>& shards,
                  const model::ModelConfig& config);

}  // namespace onecard::sparse
