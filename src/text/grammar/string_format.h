// The values of `format` that OpenAI's strict mode knows, each as a pattern.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace onecard::text::grammar {

struct StringFormat {
  std::string pattern;
  std::optional<uint32_t> max_length;
};

/// date-time, date, time (RFC 3339), duration (its appendix A), email (a dot-atom of RFC 5321 at a
/// host name), hostname (RFC 1123), ipv4, ipv6 (RFC 4291) and uuid (RFC 9562). Null for any other.
const StringFormat* find_string_format(std::string_view name);

}  // namespace onecard::text::grammar
