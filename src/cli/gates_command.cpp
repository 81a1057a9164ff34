// onecard gates: checks a running server with conversations whose answers are known.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/json.h"
#include "cli/commands.h"
#include "client/gates.h"

namespace onecard::cli {
namespace {

struct GatesFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  client::GateOptions options;
  bool as_json = false;
};

void print(const client::GateResult& result) {
  std::printf("%s  %s: %s\n      shows: %s; not: %s\n", result.passed ? "pass" : "FAIL",
              result.name.c_str(), result.found.c_str(), result.shows.c_str(),
              result.not_shown.c_str());
  std::fflush(stdout);
}

int gates(const GatesFlags& flags) {
  client::Http http(flags.url, flags.api_key);
  const auto results =
      client::run_gates(http, flags.options, [&](const client::GateResult& result) {
        if (!flags.as_json) print(result);
      });
  int num_failed = 0;
  json::Value list = json::Value::array();
  for (const client::GateResult& result : results) {
    num_failed += result.passed ? 0 : 1;
    list.items().push_back(
        json::Value::object({{"name", json::Value::string(result.name)},
                             {"passed", json::Value::boolean(result.passed)},
                             {"found", json::Value::string(result.found)},
                             {"shows", json::Value::string(result.shows)},
                             {"not_shown", json::Value::string(result.not_shown)}}));
  }
  if (flags.as_json)
    std::printf("%s\n", json::dump(json::Value::object({{"gates", std::move(list)}})).c_str());
  else
    std::printf("%d of %d gates passed\n", int(results.size()) - num_failed, int(results.size()));
  return num_failed == 0 ? 0 : 1;
}

}  // namespace

void add_gates(CLI::App& app, Commands& commands) {
  const auto flags = std::make_shared<GatesFlags>();
  CLI::App* command = app.add_subcommand(
      "gates", "Checks a running server: chat, reasoning, tools, context and speed");
  command->footer(R"(The six gates are those that hosted endpoints of this model are accepted with,
scaled to the context that the server names; the others ask the same in other words and numbers,
and hide the code at 10, 50 and 90% of the prompt. Exit code 0: all passed.)");
  command->add_option("--url", flags->url, "The server")
      ->envname("ONECARD_URL")
      ->capture_default_str();
  command->add_option("--api-key", flags->api_key, "Its key")->envname("ONECARD_API_KEY");
  command
      ->add_option("--min-tok-s", flags->options.min_tokens_per_second,
                   "Tokens a second that the speed gate asks for")
      ->capture_default_str();
  command->add_option("--seed", flags->options.seed, "Of the numbers in the paraphrased gates")
      ->capture_default_str();
  command->add_flag("--original,!--no-original", flags->options.original, "Run the six gates");
  command->add_flag("--paraphrased,!--no-paraphrased", flags->options.paraphrased,
                    "Run them in other words as well");
  command->add_flag("--json", flags->as_json, "Print one JSON object");
  command->callback([&commands, flags] { commands.selected = [flags] { return gates(*flags); }; });
}

}  // namespace onecard::cli
