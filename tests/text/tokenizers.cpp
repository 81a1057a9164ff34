#include "tokenizers.h"

#include <filesystem>
#include <memory>

#include "base/json.h"
#include "support/files.h"

namespace onecard::test {

namespace {

std::string demo_path() { return golden_path("text/demo_tokenizer.json"); }

}  // namespace

const text::Tokenizer& demo_tokenizer() {
  static const auto tokenizer = text::Tokenizer::load(demo_path());
  return tokenizer;
}

std::string demo_tokenizer_json() { return read_file(demo_path()); }

text::Tokenizer tokenizer_without_added_tokens() {
  json::Value file = json::parse(demo_tokenizer_json());
  file.set("added_tokens", json::Value::array());
  return text::Tokenizer::parse(json::dump(file));
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
