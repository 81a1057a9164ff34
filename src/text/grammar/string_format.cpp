#include "text/grammar/string_format.h"

#include <map>

namespace onecard::text::grammar {
namespace {

// Days that the calendar has. Year 0 is left out, since the date types of many languages have none.
std::string date() {
  const std::string year = "(?:[1-9]\\d{3}|0[1-9]\\d\\d|00[1-9]\\d|000[1-9])";
  const std::string leap_year =
      "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
  return "(?:" + year +
         "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|"
         "02-(?:0[1-9]|1\\d|2[0-8]))|" +
         leap_year + "-02-29)";
}

// Leap seconds are left out: whether a minute has one depends on its date.
std::string time() {
  return "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?"
         "(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
}

// A unit may be followed by the next smaller one alone.
std::string duration() {
  const std::string clock = "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)";
  const std::string days = "(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)";
  return "P(?:" + days + "(?:" + clock + ")?|" + clock + "|\\d+W)";
}

const std::string& label() {
  static const std::string text = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  return text;
}
std::string host_name() { return label() + "(?:\\." + label() + ")*"; }

std::string ipv4() {
  const std::string byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  return byte + "(?:\\." + byte + "){3}";
}

// Groups in front of "::" and behind it; together they are fewer than eight. The last two can be
// written as an IPv4 address.
std::string ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  const std::string last_two = "(?:" + group + ":" + group + "|" + ipv4() + ")";
  std::string all = "(?:" + group + ":){6}" + last_two;
  for (int behind = 0; behind <= 7; ++behind) {
    const std::string front =
        behind == 7 ? ""
                    : "(?:(?:" + group + ":){0," + std::to_string(6 - behind) + "}" + group + ")?";
    std::string tail;
    if (behind == 1) tail = group;
    if (behind >= 2) tail = "(?:" + group + ":){" + std::to_string(behind - 2) + "}" + last_two;
    all += "|" + front + "::" + tail;
  }
  return "(?:" + all + ")";
}

std::map<std::string, StringFormat, std::less<>> all_formats() {
  const auto whole = [](const std::string& pattern) { return "^" + pattern + "$"; };
  constexpr uint32_t kMaxHostName = 253, kMaxMailAddress = 254;
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  return {
      {"date", {whole(date()), {}}},
      {"time", {whole(time()), {}}},
      {"date-time", {whole(date() + "[Tt]" + time()), {}}},
      {"duration", {whole(duration()), {}}},
      {"email", {whole(atom + "(?:\\." + atom + ")*@" + host_name()), kMaxMailAddress}},
      {"hostname", {whole(host_name()), kMaxHostName}},
      {"ipv4", {whole(ipv4()), {}}},
      {"ipv6", {whole(ipv6()), {}}},
      {"uuid", {whole("[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"), {}}},
  };
}

}  // namespace

const StringFormat* find_string_format(std::string_view name) {
  static const std::map<std::string, StringFormat, std::less<>> formats = all_formats();
  const auto found = formats.find(name);
  return found == formats.end() ? nullptr : &found->second;
}

}  // namespace onecard::text::grammar
