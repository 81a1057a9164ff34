// text/tokenizer_file: any bytes either load or throw; what loads encodes and decodes. So that
// mutations reach the inside, two words of the input stand for what every good file holds: @BYTES@
// for the 256 entries of the single bytes (ids 0 to 255), @PRE@ for the pre-tokeniser.
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
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
