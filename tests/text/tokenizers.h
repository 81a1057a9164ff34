// The tokenizers that tests use: each is loaded once.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace onecard::test {

/// The demo model's, a fixture.
const text::Tokenizer& demo_tokenizer();
/// The release's, where tools/fetch_vocabulary.py has put it; otherwise null.
const text::Tokenizer* release_tokenizer();

/// The demo model's tokenizer.json, to be changed by a test.
std::string demo_tokenizer_json();
/// The demo model's vocabulary without any added token.
text::Tokenizer tokenizer_without_added_tokens();

}  // namespace onecard::test

/// Declares `tokenizer`, the release's, or skips the test.
#define ONECARD_RELEASE_TOKENIZER_OR_SKIP(tokenizer)                                             \
  if (::onecard::test::release_tokenizer() == nullptr)                                           \
    GTEST_SKIP() << "build/vocabulary/tokenizer.json is missing: run tools/fetch_vocabulary.py"; \
  const ::onecard::text::Tokenizer& tokenizer = *::onecard::test::release_tokenizer()
