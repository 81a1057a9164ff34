// HTTP requests to a server, with answers that may stream. Blocks the caller; one thread at a time
// per object, which keeps its connection.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace onecard::client {

class Http {
 public:
  /// `base_url` may end in /v1; `api_key` may be empty; a request that takes longer than
  /// `timeout_seconds` fails, 0: none does. Throws kInvalidArgument when `base_url` is no http(s)
  /// URL.
  Http(std::string base_url, std::string api_key, double timeout_seconds = 0);
  ~Http();
  Http(Http&&) noexcept;
  Http& operator=(Http&&) noexcept;

  struct Answer {
    int status = 0;
    std::string body;  // what on_bytes did not take
  };

  Answer get(const std::string& path);
  Answer post(const std::string& path, const std::string& json_body);
  /// Hands the bytes of a 200 to `on_bytes` as they come; returning false ends the request, and
  /// the connection with it. `keep_going` is asked several times a second as well.
  Answer post_stream(const std::string& path, const std::string& json_body,
                     const std::function<bool(std::string_view)>& on_bytes,
                     const std::function<bool()>& keep_going);
  /// All three throw kIo "URL: why".

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace onecard::client
