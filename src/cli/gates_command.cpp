// onecard gates: checks a running server with conversations whose answers are known.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <random>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "client/gates.h"

namespace onecard::cli {
namespace {

using client::GateOutcome;
using client::GateReport;
using client::GateResult;
using json::Value;

constexpr double kTimeoutSeconds = 3600;  // of one request: a long prompt may take its time

struct GatesFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string scale = "auto";
  std::optional<uint64_t> seed;
  client::GateOptions options;
  bool as_json = false;
};

const char* outcome_name(GateOutcome outcome) {
  switch (outcome) {
    case GateOutcome::kPassed:
      return "pass";
    case GateOutcome::kFailed:
      return "FAIL";
    case GateOutcome::kNotRun:
      break;
  }
  return "----";
}

// The report as a person reads it: a line a gate as it ends, then what that does and does not show.
class Picture {
 public:
  explicit Picture(const GatesFlags& flags) : flags_(flags), colour_(isatty(STDOUT_FILENO) != 0) {}

  void show(const GateReport& report, const GateResult& result) {
    if (result.name == "load") std::printf("%s\n\n", flags_.url.c_str());
    if (result.name != "load" || report.results.size() == 1) heading(report, result);
    std::printf("  %s  %-12s %6.1f s  %s\n", painted(result.outcome).c_str(), result.name.c_str(),
                result.seconds, found(result).c_str());
    if (result.outcome == GateOutcome::kFailed)
      std::printf("        asked: %s\n        wanted: %s\n", result.asks.c_str(),
                  result.rule.c_str());
    std::fflush(stdout);
  }

  void conclude(const GateReport& report) {
    std::printf("\nWhat a pass shows, and what it does not:\n");
    std::set<std::string> told;
    for (const GateResult& result : report.results) {
      const std::string name = result.name.substr(0, result.name.find(' '));
      if (!told.insert(result.shows).second) continue;
      std::printf("  %-9s  %s; not: %s\n", name.c_str(), result.shows.c_str(),
                  result.not_shown.c_str());
    }
    int num_passed = 0, num_not_run = 0;
    std::string bar;
    for (const GateResult& result : report.results) {
      num_passed += result.outcome == GateOutcome::kPassed ? 1 : 0;
      num_not_run += result.outcome == GateOutcome::kNotRun ? 1 : 0;
      bar += result.outcome == GateOutcome::kPassed ? '#' : '.';
    }
    std::printf("\n[%s] %d of %zu gates passed", bar.c_str(), num_passed, report.results.size());
    if (num_not_run > 0) std::printf(", %d were not run", num_not_run);
    std::printf("; --seed %llu asks the same again\n",
                static_cast<unsigned long long>(flags_.options.seed));
  }

 private:
  void heading(const GateReport& report, const GateResult& result) {
    const bool first = report.results.size() == 1;
    if (!first && result.original == original_) return;
    original_ = result.original;
    std::printf("%s\n", original_ ? "The six gates, in their own words"
                                  : "\nThe same in other words and numbers; the code farther back");
  }

  std::string painted(GateOutcome outcome) const {
    const std::string name = outcome_name(outcome);
    if (!colour_ || outcome == GateOutcome::kNotRun) return name;
    return (outcome == GateOutcome::kPassed ? "\x1b[32m" : "\x1b[1;31m") + name + "\x1b[0m";
  }

  static std::string found(const GateResult& result) {
    if (result.outcome == GateOutcome::kNotRun) return "not run: the server does not answer";
    std::string text = result.found;
    if (result.num_runs > 1)
      text = std::to_string(result.num_passed) + " of " + std::to_string(result.num_runs) +
             " runs; " + text;
    return text;
  }

  const GatesFlags& flags_;
  const bool colour_;
  bool original_ = true;
};

Value as_json(const GatesFlags& flags, const GateReport& report) {
  Value gates = Value::array();
  for (const GateResult& result : report.results) {
    const char* const outcome = result.outcome == GateOutcome::kPassed   ? "passed"
                                : result.outcome == GateOutcome::kFailed ? "failed"
                                                                         : "not_run";
    Value figures = Value::object();
    for (const auto& [name, value] : result.figures) figures.set(name, Value::real(value));
    gates.items().push_back(
        Value::object({{"name", Value::string(result.name)},
                       {"set", Value::string(result.original ? "original" : "paraphrased")},
                       {"outcome", Value::string(outcome)},
                       {"runs", Value::integer(result.num_runs)},
                       {"runs_passed", Value::integer(result.num_passed)},
                       {"asks", Value::string(result.asks)},
                       {"rule", Value::string(result.rule)},
                       {"found", Value::string(result.found)},
                       {"shows", Value::string(result.shows)},
                       {"does_not_show", Value::string(result.not_shown)},
                       {"seconds", Value::real(result.seconds)},
                       {"figures", std::move(figures)}}));
  }
  return Value::object({{"url", Value::string(flags.url)},
                        {"model", Value::string(report.model)},
                        {"scale_tokens", Value::integer(report.context_tokens)},
                        {"seed", Value::integer(int64_t(flags.options.seed))},
                        {"passed", Value::boolean(report.passed())},
                        {"gates", std::move(gates)}});
}

int gates(GatesFlags flags) {
  // A run samples; without a seed, the next one samples anew.
  flags.options.seed = flags.seed ? *flags.seed : std::random_device()();
  if (flags.scale != "auto") flags.options.context_tokens = std::stoll(flags.scale);
  client::ChatClient client(flags.url, flags.api_key, kTimeoutSeconds);
  Picture picture(flags);
  const GateReport report = client::run_gates(
      client, flags.options, [&](const GateReport& so_far, const GateResult& result) {
        if (!flags.as_json) picture.show(so_far, result);
      });
  if (flags.as_json)
    std::printf("%s\n", json::dump(as_json(flags, report)).c_str());
  else
    picture.conclude(report);
  return report.passed() ? 0 : 1;
}

// "auto" or a number of tokens that has room for the question and a few lines.
std::string check_scale(const std::string& text) {
  if (text == "auto") return "";
  const bool digits = !text.empty() && text.size() <= 9 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  return digits && std::stoll(text) >= 256 ? "" : "has to be auto, or at least 256 tokens";
}

}  // namespace

void add_gates(CLI::App& app, Commands& commands) {
  const auto flags = std::make_shared<GatesFlags>();
  CLI::App* command = app.add_subcommand(
      "gates", "Checks a running server: chat, reasoning, tools, context and speed");
  command->footer(R"(Examples:
  onecard gates                                     the server at http://127.0.0.1:8000
  onecard gates --url http://host:8000 --wait 600   wait for it to load its model
  onecard gates --repeat 5 --json > report.json     every gate five times
  onecard gates --gate tools --gate speed           two gates alone

The six gates are those by which hosted endpoints of this model are accepted: load, chat, reasoning,
tools, context, speed. Their context is the one that the server names. In their own words they are
easy to pass by heart, and the code stands in the last words of its long prompt; so the same is asked
in other words and numbers, with the code at 10, 50 and 90% of the prompt.

Answers are sampled (temperature 0.6, the stories 0.8), so a weak model passes now and then; --repeat
asks again, and a gate passes when every run does.

Exit code: 0 all passed, 1 a gate failed or was not run, 2 the call was wrong.)");
  command->add_option("--url", flags->url, "The server")
      ->envname("ONECARD_URL")
      ->capture_default_str();
  command->add_option("--api-key", flags->api_key, "Its key")->envname("ONECARD_API_KEY");
  command
      ->add_option("--scale", flags->scale,
                   "Tokens that the long prompts are scaled to; auto: the context the server names")
      ->check(CLI::Validator(check_scale, "auto|TOKENS"))
      ->capture_default_str();
  command
      ->add_option("--wait", flags->options.wait_seconds,
                   "Seconds to wait until the server answers at all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--min-tok-s", flags->options.min_tokens_per_second,
                   "Tokens a second that the speed gates ask for")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--repeat", flags->options.repeat, "Runs of every gate; all have to pass")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--seed", flags->seed,
                      "Of the answers and of the other numbers (default: another one each time)");
  command->add_option("--gate", flags->options.only,
                      "Run this gate alone, in all its wordings; may be given several times");
  command
      ->add_flag("--original,!--no-original", flags->options.original,
                 "Run the six gates in their own words")
      ->default_str("on");
  command
      ->add_flag("--paraphrased,!--no-paraphrased", flags->options.paraphrased,
                 "Run them in other words as well")
      ->default_str("on");
  command->add_flag("--json", flags->as_json, "Print one JSON object instead of the picture");
  command->callback([&commands, flags] { commands.selected = [flags] { return gates(*flags); }; });
}

}  // namespace onecard::cli
