#include "server/http/router.h"

#include <charconv>
#include <utility>

namespace onecard::server::http {

void Router::add(std::string_view method, std::string_view path, Endpoint endpoint) {
  routes_.push_back({std::string(method), std::string(path), std::move(endpoint)});
}

Router::Match Router::find(std::string_view method, std::string_view path) const {
  Match match;
  for (const Route& route : routes_) {
    const bool below = route.path.ends_with('/') && path.starts_with(route.path) &&
                       path.size() > route.path.size();
    if (!below && path != route.path) continue;
    if (route.method == method) return {&route.endpoint, ""};
    match.allowed += (match.allowed.empty() ? "" : ", ") + route.method;
  }
  return match;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16).ptr ==
            text.data() + i + 3) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace onecard::server::http
