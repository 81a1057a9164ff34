// onecard render: a chat completions request to the prompt that the model would be given.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "base/json.h"
#include "cli/commands.h"
#include "text/chat_encoder.h"
#include "text/chat_json.h"
#include "text/tokenizer.h"

namespace onecard::cli {
namespace {

struct RenderFlags {
  std::string model_dir;
  bool as_json = false;
  bool client_markup_as_tokens = false;
};

int render(const RenderFlags& flags) {
  const std::string body((std::istreambuf_iterator<char>(std::cin)),
                         std::istreambuf_iterator<char>());
  const text::Prompt prompt =
      text::encode_chat(text::conversation_from_json(json::parse(body), {.lenient_history = true}));
  std::string out = prompt.text;
  if (flags.as_json) {
    const auto tokenizer = text::Tokenizer::load(flags.model_dir + "/tokenizer.json");
    const auto markup =
        flags.client_markup_as_tokens ? text::ClientMarkup::kTokens : text::ClientMarkup::kText;
    std::vector<json::Value> ids;
    for (const text::TokenId id : text::encode_ids(prompt, tokenizer, markup))
      ids.push_back(json::Value::integer(id));
    out = json::dump(json::Value::object({{"prompt", json::Value::string(prompt.text)},
                                          {"ids", json::Value::array(std::move(ids))}})) +
          "\n";
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
  return 0;
}

}  // namespace

void add_render(CLI::App& app, Commands& commands) {
  const auto flags = std::make_shared<RenderFlags>();
  CLI::App* command = app.add_subcommand(
      "render", "Reads a chat completions request from stdin, prints the prompt it makes");
  command->footer(R"(Example:
  echo '{"messages": [{"role": "user", "content": "Hello"}]}' | onecard render --model models/demo)");
  command->add_option("--model", flags->model_dir, "The model's directory")->required();
  command->add_flag("--json", flags->as_json, "Print {\"prompt\": ..., \"ids\": [...]}");
  command->add_flag("--client-markup", flags->client_markup_as_tokens,
                    "Let markup in the messages become the tokens it names, as other servers do");
  command->callback([&commands, flags] { commands.selected = [flags] { return render(*flags); }; });
}

}  // namespace onecard::cli
