// onecard config: what a server would run with, and where each setting comes from.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/server_config.h"

namespace onecard::cli {
namespace {

using json::Value;

struct ConfigFlags {
  ServerConfig server;
  bool as_json = false;
  bool as_markdown = false;
};

struct Setting {
  FlagText text;
  std::string value;
  const char* source = "default";
};

std::string joined(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ",") + value;
  return text;
}

void add_flags(CLI::App& command, ConfigFlags& flags) {
  add_model_flags(command, flags.server);
  add_server_flags(command, flags.server);
  command.add_flag("--json", flags.as_json, "Print one JSON object");
  command.add_flag("--markdown", flags.as_markdown,
                   "Print every flag of every command, as the documentation lists them");
}

bool is_own(const FlagText& text) { return text.names == "--json" || text.names == "--markdown"; }

void forget_environment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) option->envname("");
  for (CLI::App* group : app.get_subcommands([](CLI::App*) { return true; }))
    forget_environment(*group);
}

// Which flags were typed, whatever the environment says: the same flags, parsed without it.
std::map<std::string, bool> typed_flags(std::vector<std::string> arguments) {
  ConfigFlags ignored;
  CLI::App app;
  add_flags(app, ignored);
  forget_environment(app);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  app.parse(arguments);
  std::map<std::string, bool> typed;
  for (const FlagText& text : flag_texts(app)) typed[text.names] = text.option->count() > 0;
  return typed;
}

// What onecard chooses where nobody did.
std::map<std::string, std::string> choices(const ServerConfig& config) {
  const ServerConfig chosen = with_choices(config);
  return {{"--model", chosen.model_dir},
          {"--served-model-name", joined(chosen.model_names)},
          {"--max-model-len", std::to_string(chosen.max_model_len)},
          {"--threads", std::to_string(chosen.threads)},
          {"--device", chosen.device},
          {"--isa", chosen.isa}};
}

std::vector<Setting> effective_settings(const CLI::App& command, const ConfigFlags& flags,
                                        const std::vector<std::string>& arguments) {
  const std::map<std::string, bool> typed = typed_flags(arguments);
  const std::map<std::string, std::string> chosen = choices(flags.server);
  std::vector<Setting> settings;
  for (FlagText& text : flag_texts(command)) {
    if (is_own(text)) continue;
    Setting setting;
    const bool is_switch = text.values.empty();
    const bool given = text.option->count() > 0;
    setting.value = given ? joined(text.option->results()) : text.fallback;
    if (is_switch && given) setting.value = text.option->as<bool>() ? "on" : "off";
    if (given) setting.source = typed.at(text.names) ? "flag" : "environment";
    const auto choice = chosen.find(text.names);
    if (choice != chosen.end() && (!given || setting.value == "auto" || setting.value == "0")) {
      setting.value = choice->second;
      setting.source = "plan";
    }
    if (given && text.names == "--api-key") setting.value = "(not shown)";
    setting.text = std::move(text);
    settings.push_back(std::move(setting));
  }
  return settings;
}

void print_text(const std::vector<Setting>& settings) {
  std::printf(
      "What \"onecard serve\" would run with. A flag wins over its environment variable.\n"
      "Sources: default, environment, flag; plan: chosen for this machine and model.\n");
  std::string group;
  for (const Setting& setting : settings) {
    const std::string heading = setting.text.group.empty() ? "Other" : setting.text.group;
    if (heading != group) std::printf("\n%s\n", heading.c_str());
    group = heading;
    std::printf("  %-52s %-12s %s\n", (setting.text.names + " = " + setting.value).c_str(),
                setting.source, setting.text.variable.c_str());
    std::printf("      %s\n", setting.text.meaning.c_str());
  }
}

void print_json(const std::vector<Setting>& settings) {
  Value list = Value::array();
  for (const Setting& setting : settings)
    list.items().push_back(Value::object({{"flag", Value::string(setting.text.names)},
                                          {"variable", Value::string(setting.text.variable)},
                                          {"value", Value::string(setting.value)},
                                          {"source", Value::string(setting.source)},
                                          {"meaning", Value::string(setting.text.meaning)}}));
  std::printf("%s\n", json::dump(Value::object({{"settings", std::move(list)}})).c_str());
}

// Text for a cell of a table.
std::string cell(std::string text) {
  for (size_t i = 0; (i = text.find('|', i)) != std::string::npos; i += 2) text.insert(i, 1, '\\');
  return text;
}

// A section for each command below `parent`, and for the commands of that one.
void print_markdown(const CLI::App& parent, const std::string& name) {
  for (const CLI::App* command : parent.get_subcommands({})) {
    if (command->get_name().empty()) continue;  // a group of flags
    const std::string full_name = name + " " + command->get_name();
    std::printf("## %s\n\n%s.\n\n", full_name.c_str(), command->get_description().c_str());
    const std::vector<FlagText> texts = flag_texts(*command);
    if (!texts.empty()) std::printf("| flag | variable | default | meaning |\n|---|---|---|---|\n");
    for (const FlagText& text : texts) {
      const std::string flag = text.names + (text.values.empty() ? "" : " " + text.values);
      const std::string variable = text.variable.empty() ? "" : "`" + text.variable + "`";
      const std::string fallback = text.option->get_required() ? "needed" : text.fallback;
      std::printf("| `%s` | %s | %s | %s |\n", cell(flag).c_str(), variable.c_str(),
                  cell(fallback).c_str(), cell(text.meaning).c_str());
    }
    if (!texts.empty()) std::printf("\n");
    print_markdown(*command, full_name);
  }
}

}  // namespace

void add_config(CLI::App& app, Commands& commands) {
  const auto flags = std::make_shared<ConfigFlags>();
  CLI::App* command = app.add_subcommand(
      "config", "Shows what a server would run with, and where each setting comes from");
  command->footer(R"(Examples:
  onecard config                                   as things are
  ONECARD_PORT=9000 onecard config --max-num-seqs 8
  onecard config --json | python3 -m json.tool

It takes the flags of "onecard serve", reads the same environment, loads no weights and listens to
nothing. Whether there is enough memory is asked when the server starts. Exit code: 0 the server
would accept these settings, 2 it would not.)");
  add_flags(*command, *flags);
  command->callback([&app, &commands, command, flags] {
    commands.selected = [&app, &commands, command, flags] {
      if (flags->as_markdown) {
        print_markdown(app, app.get_name());
        return 0;
      }
      const auto settings = effective_settings(*command, *flags, commands.arguments);
      if (flags->as_json)
        print_json(settings);
      else
        print_text(settings);
      return 0;
    };
  });
}

}  // namespace onecard::cli
