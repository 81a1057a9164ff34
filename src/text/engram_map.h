// The n-gram memory's view of the vocabulary: tokens that differ only in case, accents, width or
// white space share one compressed id.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace onecard::text {

struct EngramMap {
  std::vector<int32_t> compressed_ids;  // one for each token id below vocab_size()
  int num_compressed_ids = 0;           // the model's engram_compressed_vocab_size
};

/// Deterministic given the tokenizer and the Unicode version of the linked ICU. Throws kUnsupported
/// when the tokenizer leaves ids unused: the map of such a vocabulary is not defined.
EngramMap build_engram_map(const Tokenizer& tokenizer);

}  // namespace onecard::text
