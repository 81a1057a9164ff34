// A matrix of the source checkpoint in f32, whatever format it is stored in.
#pragma once

#include <string>

#include "io/checkpoint.h"
#include "tensor/buffer.h"

namespace onecard::quantize {

/// Rows [row_begin, row_begin + out_features) of the module with `source_rows` rows, as
/// [out_features, in_features]. Throws kDataCorrupt when its tensors are missing or misshapen.
Buffer<float> read_matrix(const io::Checkpoint& source, const std::string& module,
                          int64_t source_rows, int64_t row_begin, int64_t out_features,
                          int64_t in_features);

}  // namespace onecard::quantize
