// Text that a command reads with the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onecard::cli {

/// The tokens of the documents in `path`, up to `limit` in all: JSON lines, each a string with its
/// special tokens, by the tokenizer of `model_dir`. The last document is cut where the limit falls.
/// Throws kInvalidArgument naming `flag` when there is no text.
std::vector<std::vector<int32_t>> read_documents(const std::string& flag, const std::string& path,
                                                 const std::string& model_dir, int64_t limit);

}  // namespace onecard::cli
