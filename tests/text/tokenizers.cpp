#include "tokenizers.h"

#include <filesystem>
#include <memory>

#include "support/files.h"

namespace onecard::test {

const text::Tokenizer& demo_tokenizer() {
  static const auto tokenizer = text::Tokenizer::load(golden_path("text/demo_tokenizer.json"));
  return tokenizer;
}

const text::Tokenizer* release_tokenizer() {
  static const auto tokenizer = []() -> std::unique_ptr<text::Tokenizer> {
    const std::string path = std::string(ONECARD_SOURCE_DIR) + "/build/vocabulary/tokenizer.json";
    if (!std::filesystem::exists(path)) return nullptr;
    return std::make_unique<text::Tokenizer>(text::Tokenizer::load(path));
  }();
  return tokenizer.get();
}

}  // namespace onecard::test
