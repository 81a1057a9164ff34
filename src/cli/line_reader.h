// Lines that a person types: edited and recalled where a terminal is on both ends, read as they
// come otherwise. Used from the main thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

namespace onecard::cli {

class LineReader {
 public:
  /// `interrupted` is set by a signal handler, and gives up the line that is being typed. Lines of
  /// earlier runs come from `history_file`, which gets those of this one; empty: there is none.
  LineReader(std::atomic<bool>& interrupted, const std::string& history_file);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool interactive() const { return editor_ != nullptr; }

  /// The next line without its newline; nothing at the end of the input. A line that is interrupted
  /// is given up: what is returned is empty. `prompt` is shown when a person types.
  std::optional<std::string> read(const std::string& prompt);

  /// Puts `text` where the arrow keys find it.
  void remember(const std::string& text);

 private:
  struct Editor;

  std::atomic<bool>& interrupted_;
  std::unique_ptr<Editor> editor_;
};

}  // namespace onecard::cli
