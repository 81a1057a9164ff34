// What --help prints: every flag with its values, its default and its environment variable, wrapped
// for a terminal.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
class Option;
}  // namespace CLI

namespace onecard::cli {

std::shared_ptr<CLI::FormatterBase> help_formatter();

/// A flag as people are told of it.
struct FlagText {
  std::string group;     // "Model", or empty
  std::string names;     // "--cors, --no-cors"; "DIR" of a positional one
  std::string values;    // "1..64", "auto|cpu", "TEXT", or empty for a switch
  std::string variable;  // "ONECARD_PORT", or empty
  std::string fallback;  // the default, or what it is said to be; empty: none
  std::string meaning;
  const CLI::Option* option = nullptr;
};

/// The flags of a command in the order of its help, without --help.
std::vector<FlagText> flag_texts(const CLI::App& command);

}  // namespace onecard::cli
