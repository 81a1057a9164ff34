// text/tokenizer_file: any bytes either load or throw; what loads encodes and decodes. So that
// mutations reach the inside, two words of the input stand for what every good file holds: @BYTES@
// for the 256 entries of the single bytes (ids 0 to 255), @PRE@ for the pre-tokeniser.
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace {

using onecard::text::kPreTokenizerPatterns;

std::string byte_entries() {
  std::string entries;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    std::string text;
    onecard::text::append_code_point(text, printable ? static_cast<char32_t>(byte) : next++);
    if (byte > 0) entries += ',';
    entries += onecard::json::quoted(text) + ':' + std::to_string(byte);
  }
  return entries;
}

std::string pre_tokenizer() {
  std::string steps;
  for (const std::string_view pattern : kPreTokenizerPatterns)
    steps += R"({"type":"Split","behavior":"Isolated","invert":false,"pattern":{"Regex":)" +
             onecard::json::quoted(pattern) + "}},";
  return R"({"type":"Sequence","pretokenizers":[)" + steps + R"({"type":"ByteLevel"}]})";
}

void replace_all(std::string& text, std::string_view from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// Every token is its own: none has taken another one's id.
void check(const onecard::text::TokenizerFile& file) {
  std::set<std::string> texts;
  int num_used = 0;
  for (const auto& token : file.tokens) {
    if (!token.is_used) continue;
    ++num_used;
    if (!texts.insert(token.text).second) std::abort();
  }
  if (num_used < file.num_model_tokens) std::abort();
  for (int byte = 0; byte < 256; ++byte)
    if (onecard::text::byte_level_decode(file.tokens.at(file.byte_ids[byte]).text) !=
        std::string(1, static_cast<char>(byte)))
      std::abort();
  for (const auto& merge : file.merges)
    if (file.tokens.at(merge.left).text + file.tokens.at(merge.right).text !=
        file.tokens.at(merge.merged).text)
      std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string bytes = byte_entries();
  static const std::string pre = pre_tokenizer();
  std::string file(reinterpret_cast<const char*>(data), size);
  if (size < 4096) {
    replace_all(file, "@BYTES@", bytes);
    replace_all(file, "@PRE@", pre);
  }
  try {
    check(onecard::text::parse_tokenizer_file(file));
    const auto tokenizer = onecard::text::Tokenizer::parse(file);
    const std::string text = "abab cd <x> 12\xff" + file.substr(0, 100);
    std::string decoded;
    for (const auto id : tokenizer.encode(text)) decoded += tokenizer.token_bytes(id);
    if (decoded != text) std::abort();
  } catch (const onecard::Error& error) {
    if (error.code() != onecard::ErrorCode::kDataCorrupt &&
        error.code() != onecard::ErrorCode::kUnsupported)
      std::abort();
  }
  return 0;
}
