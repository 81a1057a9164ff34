// Stop strings in text that arrives in pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace onecard::text {

/// Looks for the string whose last byte comes first (the longest of those, if several end there).
/// Holds the longest suffix that may begin one. Linear in the text for a bounded number of strings
/// (Knuth, Morris and Pratt 1977, one automaton a string).
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  bool empty() const { return patterns_.empty(); }
  /// Appends to `out` what is certain not to belong to a stop string. Returns true when one is
  /// met: it is not in `out`, and nothing may be pushed afterwards.
  bool push(std::string_view text, std::string& out);
  /// Appends what was held: the text goes on elsewhere, or has ended.
  void flush(std::string& out);
  /// The string that was met.
  const std::string& met() const { return met_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // border[n]: the longest proper border of the first n bytes
    size_t matched = 0;
  };
  std::vector<Pattern> patterns_;
  std::string held_;
  std::string met_;
};

}  // namespace onecard::text
