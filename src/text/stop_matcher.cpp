#include "text/stop_matcher.h"

#include <algorithm>

#include "base/error.h"

namespace onecard::text {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    require(!stop.empty(), ErrorCode::kInvalidArgument, "stop: a stop string is empty");
    Pattern pattern;
    pattern.border.assign(stop.size() + 1, 0);
    for (size_t n = 2, border = 0; n <= stop.size(); ++n) {
      while (border > 0 && stop[border] != stop[n - 1]) border = pattern.border[border];
      if (stop[border] == stop[n - 1]) ++border;
      pattern.border[n] = border;
    }
    pattern.text = std::move(stop);
    patterns_.push_back(std::move(pattern));
  }
}

bool StopMatcher::push(std::string_view text, std::string& out) {
  const size_t num_held = held_.size();
  held_ += text;
  for (size_t i = num_held; i < held_.size(); ++i) {
    const Pattern* met = nullptr;
    for (Pattern& pattern : patterns_) {
      size_t& matched = pattern.matched;
      while (matched > 0 && pattern.text[matched] != held_[i]) matched = pattern.border[matched];
      if (pattern.text[matched] == held_[i]) ++matched;
      if (matched == pattern.text.size() && (!met || matched > met->text.size())) met = &pattern;
    }
    if (met) {
      out.append(held_, 0, i + 1 - met->text.size());
      met_ = met->text;
      held_.clear();
      return true;
    }
  }
  size_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max(keep, pattern.matched);
  out.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopMatcher::flush(std::string& out) {
  out += held_;
  held_.clear();
  for (Pattern& pattern : patterns_) pattern.matched = 0;
}

}  // namespace onecard::text
