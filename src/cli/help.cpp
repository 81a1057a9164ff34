#include "cli/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

namespace onecard::cli {
namespace {

constexpr size_t kIndent = 6;
constexpr size_t kLineLength = 100;

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

bool is_switch(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

// From CLI11's "INT:INT in [1 - 64]", "TEXT:{auto,cpu}", "INT:NONNEGATIVE".
std::string values_of(const CLI::Option& option) {
  if (is_switch(option)) return "";
  const std::string type = option.get_type_name();
  std::string values = type.substr(0, type.find(':'));
  if (const size_t begin = type.find(":{"); begin != std::string::npos) {
    values = type.substr(begin + 2, type.find('}', begin) - begin - 2);
    for (char& c : values) c = c == ',' ? '|' : c;
  } else if (const size_t range = type.find(" in ["); range != std::string::npos) {
    const std::string bounds = type.substr(range + 5, type.find(']', range) - range - 5);
    const size_t dash = bounds.find(" - ");
    values = bounds.substr(0, dash) + ".." + bounds.substr(dash + 3);
  } else if (type.find(':') != std::string::npos && type.find("NEGATIVE") == std::string::npos &&
             type.find("POSITIVE") == std::string::npos) {
    values = type.substr(type.find(':') + 1);  // named by the flag's own check
  }
  if (values == "INT" || values == "UINT") values = "N";
  if (values == "FLOAT") values = "X";
  if (const int count = option.get_items_expected_min(); count == option.get_items_expected_max())
    for (int i = 1; i < count; ++i) values += "," + values.substr(0, values.find(','));
  return values;
}

FlagText text_of(const std::string& group, const CLI::Option& option) {
  FlagText text;
  text.group = group;
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  if (names.empty()) names.push_back(option.get_name());
  text.names = joined(names, ", ");
  text.values = values_of(option);
  text.variable = option.get_envname();
  text.meaning = option.get_description();
  text.fallback = option.get_default_str();
  if (is_switch(option)) text.fallback = text.fallback.empty() ? "off" : text.fallback;
  if (text.fallback.size() > 1 && text.fallback.front() == '[')
    text.fallback = text.fallback.substr(1, text.fallback.size() - 2);
  // What no value stands for is told in the words of the description.
  constexpr std::string_view kDefault = " (default: ";
  if (const size_t begin = text.meaning.find(kDefault);
      begin != std::string::npos && text.meaning.ends_with(')')) {
    text.fallback = text.meaning.substr(begin + kDefault.size());
    text.fallback.pop_back();
    text.meaning.resize(begin);
  }
  text.option = &option;
  return text;
}

std::string wrapped(const std::string& text) {
  std::string out, line;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find(' ', begin);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && kIndent + line.size() + 1 + word.size() > kLineLength) {
      out += std::string(kIndent, ' ') + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return out + std::string(kIndent, ' ') + line + "\n";
}

std::string entry(const FlagText& text, bool required) {
  std::string out = "  " + text.names + (text.values.empty() ? "" : " " + text.values) + "\n";
  std::string meaning = text.meaning;
  if (required) meaning += " (needed)";
  if (!text.fallback.empty()) meaning += " [default: " + text.fallback + "]";
  if (!text.variable.empty()) meaning += " [$" + text.variable + "]";
  return out + wrapped(meaning);
}

class Formatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode) const override {
    std::string out = app->get_description() + "\n\nUsage: ";
    std::string usage = name.empty() ? app->get_name() : name;
    const bool has_commands =
        !app->get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); }).empty();
    if (has_commands) usage += " COMMAND";
    for (const FlagText& text : flag_texts(*app))
      if (text.option->get_positional())
        usage += text.option->nonpositional() ? " [" + text.option->get_name(true) + "]"
                                              : " " + text.names;
    out += usage + " [FLAGS]\n";
    if (has_commands) {
      out += "\nCommands:\n";
      for (const CLI::App* sub : app->get_subcommands({}))
        if (!sub->get_name().empty()) {
          std::string line = "  " + sub->get_name();
          line.resize(std::max<size_t>(line.size() + 1, 15), ' ');
          out += line + sub->get_description() + "\n";
        }
    }
    std::string group;
    bool first = true;
    for (const FlagText& text : flag_texts(*app)) {
      if (first || text.group != group)
        out += "\n" + (text.group.empty() ? "Flags" : text.group) + ":\n";
      first = false;
      group = text.group;
      out += entry(text, text.option->get_required());
    }
    if (!app->get_footer().empty()) out += "\n" + app->get_footer() + "\n";
    return out;
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<Formatter>(); }

std::vector<FlagText> flag_texts(const CLI::App& command) {
  std::vector<FlagText> texts;
  const auto add = [&](const CLI::App& app, const std::string& group) {
    for (const CLI::Option* option : app.get_options({}))
      if (option != app.get_help_ptr() && option != app.get_version_ptr() &&
          !option->get_group().empty())
        texts.push_back(text_of(group, *option));
  };
  add(command, "");
  for (const CLI::App* group : command.get_subcommands({}))
    if (group->get_name().empty()) add(*group, group->get_group());
  return texts;
}

}  // namespace onecard::cli
