// onecard parse: a model's raw output to the message that a client would get.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "server/openai/chat_answer.h"
#include "text/chat_json.h"
#include "text/message_fold.h"
#include "text/output_parser.h"

namespace onecard::cli {
namespace {

struct ParseFlags {
  std::string start = "reasoning";
  bool as_json = false;
};

struct ParseInput {
  std::string raw;
  text::OutputParserOptions options;
  text::OutputEnd end = text::OutputEnd::kEndOfTurn;
};

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "parse: " + what);
}

text::ParserStart start_from(const std::string& name) {
  if (name == "reasoning") return text::ParserStart::kReasoning;
  if (name == "content") return text::ParserStart::kContent;
  if (name == "calls") return text::ParserStart::kCalls;
  refuse("start: expected reasoning, content or calls, found \"" + name + "\"");
}

text::ToolChoice choice_from(const json::Value& value) {
  text::ToolChoice choice;
  if (const json::Value* function = value.find("function")) {
    const json::Value* name = function->find("name");
    if (!name) refuse("tool_choice.function: it has no name");
    return {text::ToolChoice::Kind::kNamed, name->as_string()};
  }
  if (value.as_string() == "none")
    choice.kind = text::ToolChoice::Kind::kNone;
  else if (value.as_string() == "required")
    choice.kind = text::ToolChoice::Kind::kRequired;
  else if (value.as_string() != "auto")
    refuse("tool_choice: expected auto, none, required or a function");
  return choice;
}

// The form {"raw": ..., "start": ..., "tools": ...}; members as in a chat completions request.
ParseInput input_from(const json::Value& body, ParseInput input) {
  input.raw = body.find("raw")->as_string();
  if (const json::Value* start = body.find("start"))
    input.options.start = start_from(start->as_string());
  if (const json::Value* tools = body.find("tools"))
    for (const json::Value& tool : tools->items())
      input.options.tools.push_back(text::tool_from_json(tool, input.options.tools.size()));
  if (const json::Value* choice = body.find("tool_choice"))
    input.options.tool_choice = choice_from(*choice);
  if (const json::Value* parallel = body.find("parallel_tool_calls"))
    input.options.parallel_tool_calls = parallel->as_bool();
  if (const json::Value* stop = body.find("stop"))
    for (const json::Value& text : stop->items()) input.options.stop.push_back(text.as_string());
  if (const json::Value* continuation = body.find("continuation"))
    input.options.continuation = continuation->as_bool();
  if (const json::Value* end = body.find("end")) {
    if (end->as_string() == "length")
      input.end = text::OutputEnd::kTokenLimit;
    else if (end->as_string() != "eos")
      refuse("end: expected eos or length");
  }
  return input;
}

ParseInput read_input(const ParseFlags& flags, const std::string& text) {
  ParseInput input;
  input.raw = text;
  input.options.start = start_from(flags.start);
  if (!text.starts_with("{")) return input;
  json::Value body;
  try {
    body = json::parse(text);
  } catch (const Error&) {
    return input;  // raw output that begins like an object
  }
  const json::Value* raw = body.find("raw");
  return raw && raw->is_string() ? input_from(body, std::move(input)) : input;
}

std::string plain(const text::ParsedMessage& message) {
  std::string out;
  if (!message.reasoning.empty()) out += "reasoning: " + message.reasoning + "\n";
  if (!message.content_is_null()) out += "content: " + message.content + "\n";
  for (const text::ParsedCall& call : message.calls)
    out += "call: " + call.name + " " + call.arguments + (call.complete ? "\n" : " (cut)\n");
  return out + "finish_reason: " + finish_reason_name(message.finish_reason) + "\n";
}

std::string as_json(const text::ParsedMessage& message) {
  int num_ids = 0;
  const auto counted_id = [&](std::string_view prefix) {
    return std::string(prefix) + std::to_string(num_ids++);
  };
  const json::Value choice =
      server::openai::chat_choice({}, 0, message, {}, std::nullopt, counted_id);
  json::Value out = *choice.find("message");
  for (const char* key : {"finish_reason", "stop_reason"}) out.set(key, *choice.find(key));
  return json::dump(out) + "\n";
}

int parse(const ParseFlags& flags) {
  const std::string text((std::istreambuf_iterator<char>(std::cin)),
                         std::istreambuf_iterator<char>());
  const ParseInput input = read_input(flags, text);
  text::OutputParser parser(input.options);
  text::ParsedMessage message;
  for (const text::MessageEvent& event : parser.feed(input.raw)) fold(event, message);
  for (const text::MessageEvent& event : parser.finish(input.end)) fold(event, message);
  const std::string out = flags.as_json ? as_json(message) : plain(message);
  std::fwrite(out.data(), 1, out.size(), stdout);
  return 0;
}

}  // namespace

void add_parse(CLI::App& app, Commands& commands) {
  const auto flags = std::make_shared<ParseFlags>();
  CLI::App* command = app.add_subcommand(
      "parse", "Reads a model's raw output from stdin, prints the message it means");
  command->footer(R"(Example:
  echo 'Easy.</think>It is 391.' | onecard parse --start reasoning --json

The input may also be an object with the request's part in it: {"raw": ..., "start": ...,
"tools": [...], "tool_choice": ..., "parallel_tool_calls": ..., "stop": [...], "continuation": ...,
"end": "eos" or "length"})");
  command->add_option("--start", flags->start,
                      "What the prompt ended in: reasoning, content or calls");
  command->add_flag("--json", flags->as_json, "Print the message as a chat completion has it");
  command->callback([&commands, flags] { commands.selected = [flags] { return parse(*flags); }; });
}

}  // namespace onecard::cli
