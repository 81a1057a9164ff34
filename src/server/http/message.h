// An HTTP request and response as handlers see them: plain data, no transport.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace onecard::server::http {

using Header = std::pair<std::string, std::string>;

struct Request {
  std::string method;           // upper case; HEAD arrives as GET
  std::string path;             // without the query, not decoded
  std::string query;            // without the '?'
  std::vector<Header> headers;  // names in lower case
  std::string body;
  std::string id;  // the client's X-Request-Id, or one of ours

  /// The value of a header, by its lower-case name; null when there is none.
  const std::string* header(std::string_view name) const {
    const auto found = std::find_if(headers.begin(), headers.end(),
                                    [&](const Header& header) { return header.first == name; });
    return found == headers.end() ? nullptr : &found->second;
  }
};

struct Response {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<Header> headers = {};
};

}  // namespace onecard::server::http
