// text/output_parser: whatever the model writes and however it is cut, the message is the same, its
// complete calls hold JSON objects, no event ends within a character, and the work is linear in the
// text.
//
// The first bytes of the input choose options and cuts, the rest is the output.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>

#include "base/json.h"
#include "text/chat_tokens.h"
#include "text/message_fold.h"
#include "text/output_parser.h"
#include "text/utf8.h"

namespace {

using onecard::text::OutputEnd;
using onecard::text::OutputParser;
using onecard::text::OutputParserOptions;
using onecard::text::ParsedMessage;

void expect(bool condition) {
  if (!condition) std::abort();
}

constexpr const char* kParameters = R"({"type": "object", "properties": {
    "s": {"type": "string"}, "n": {"type": ["integer", "null"]},
    "a": {"anyOf": [{"type": "array"}, {"type": "boolean"}]}}})";

OutputParserOptions options_from(uint8_t choices) {
  OutputParserOptions options;
  const onecard::text::ParserStart starts[] = {onecard::text::ParserStart::kReasoning,
                                               onecard::text::ParserStart::kContent,
                                               onecard::text::ParserStart::kCalls};
  options.start = starts[choices % 3];
  if (choices & 4) {
    options.tools.push_back({"f", "", onecard::json::parse(kParameters), false});
    options.tools.push_back({"ff", "", onecard::json::Value::object(), false});
  }
  if (choices & 8) options.stop = {"END", "\n\n", "ENE"};
  options.continuation = (choices & 16) != 0;
  options.parallel_tool_calls = (choices & 32) == 0;
  options.include_stop_string = (choices & 64) != 0;
  options.convert_by_schema = (choices & 128) == 0;
  return options;
}

// Markup is long: one byte stands for a tag, so that mutations make and break whole tags; and for
// characters of several bytes.
std::string expand(std::string_view text) {
  const std::string open(onecard::text::kDsmlOpen), close(onecard::text::kDsmlClose);
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '\x01':
        out += open + " calls>";
        break;
      case '\x02':
        out += close + " calls>";
        break;
      case '\x03':
        out += open + " invoke name=\"";
        break;
      case '\x04':
        out += close + "invoke>";
        break;
      case '\x05':
        out += open + " parameter name=\"";
        break;
      case '\x06':
        out += close + " parameter>";
        break;
      case '\x07':
        out += "\" string=\"true\">";
        break;
      case '\x08':
        out += "\" string=\"false\">";
        break;
      case '\x0e':
        out += "<think>";
        break;
      case '\x0f':
        out += "</think>";
        break;
      case '\x10':
        out += onecard::text::kEos;
        break;
      case '\x11':
        out += "f\">\n";
        break;
      case '\x12':
        out += "\u00e9";
        break;
      case '\x13':
        out += "\U0001f600";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void expect_whole_characters(const onecard::text::MessageEvent& event) {
  std::visit(
      [](const auto& e) {
        if constexpr (requires { e.text; })
          for (size_t n = 1; n <= 3 && n <= e.text.size(); ++n)
            expect(!onecard::text::is_incomplete_sequence(
                std::string_view(e.text).substr(e.text.size() - n)));
      },
      event);
}

/// valid: `text` is UTF-8, so that every event has to be.
ParsedMessage parse(const OutputParserOptions& options, std::string_view text, bool valid,
                    OutputEnd end, size_t first_piece, size_t piece) {
  OutputParser parser(options);
  ParsedMessage message;
  for (size_t begin = 0, size = first_piece; begin < text.size(); begin += size, size = piece) {
    size = size == 0 ? 1 : size;
    for (const auto& event : parser.feed(text.substr(begin, size))) {
      if (valid) expect_whole_characters(event);
      fold(event, message);
    }
  }
  for (const auto& event : parser.finish(end)) fold(event, message);
  expect(parser.wants_stop());
  expect(parser.num_bytes_scanned() <= 64 * (text.size() + 64));
  return message;
}

void expect_same(const ParsedMessage& a, const ParsedMessage& b) {
  expect(a.reasoning == b.reasoning && a.content == b.content);
  expect(a.finish_reason == b.finish_reason && a.stop_string == b.stop_string);
  expect(a.calls.size() == b.calls.size());
  for (size_t i = 0; i < a.calls.size(); ++i)
    expect(a.calls[i].name == b.calls[i].name && a.calls[i].arguments == b.calls[i].arguments &&
           a.calls[i].complete == b.calls[i].complete);
}

bool is_ascii(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3 || size > 2000) return 0;
  const OutputParserOptions options = options_from(data[0]);
  const OutputEnd end = data[1] % 2 == 0 ? OutputEnd::kEndOfTurn : OutputEnd::kTokenLimit;
  const size_t piece = 1 + data[2] % 40;
  const std::string_view written(reinterpret_cast<const char*>(data + 3), size - 3);
  const std::string text = expand(written);
  const bool valid = is_ascii(written);
  const ParsedMessage whole = parse(options, text, valid, end, text.size(), 1);
  expect_same(parse(options, text, valid, end, 1, 1), whole);
  expect_same(parse(options, text, valid, end, data[1], piece), whole);
  for (const onecard::text::ParsedCall& call : whole.calls)
    if (call.complete && valid)  // bytes that are no UTF-8 stay what they are
      expect(onecard::json::parse(call.arguments, {.max_depth = 256}).is_object());
  return 0;
}
