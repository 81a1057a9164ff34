// How much memory a Workspace takes, without making it.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace onecard::model {

/// Bytes that grow evenly with a number of tokens.
struct BytesByTokens {
  double fixed = 0;
  double per_token = 0;
  int64_t at(int64_t tokens) const { return int64_t(fixed + per_token * double(tokens)); }
};

/// Bytes that Workspace(config, max_rows, capacity_tokens) allocates, by its capacity; below the
/// number of rows that a query selects it is a little less. Measured on two small ones: the layout
/// is the workspace's own.
BytesByTokens workspace_bytes(const ModelConfig& config, int64_t max_rows);

}  // namespace onecard::model
