// A plain HTTP/1.1 client over a socket, for tests that need to see and send exact bytes. Every
// wait ends after a minute; a test that gets there fails.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace onecard::test {

struct HttpResponse {
  int status = 0;  // 0: the connection ended before an answer came
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;                                          // chunks joined
  std::string header(std::string_view name) const;           // "" when absent
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port, int receive_buffer_bytes = 0);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// False when the peer has closed.
  bool send(std::string_view bytes);
  /// "METHOD path HTTP/1.1" with Host, Content-Type and Content-Length, and the body.
  bool request(std::string_view method, std::string_view path, std::string_view body = "",
               std::string_view extra_headers = "");

  HttpResponse read_response();
  /// The status and headers alone; the body is left to read_until().
  HttpResponse read_head();
  /// Reads until the bytes received and not yet returned hold `text`, and returns them up to its
  /// end; everything there was when the peer closes.
  std::string read_until(std::string_view text);
  /// Whether the peer closes, or has closed, without further bytes.
  bool at_end();
  /// Says that no more will be sent.
  void shut_down();
  /// Ends the connection, the hard way.
  void reset();

 private:
  bool fill();  // false: the peer has closed
  int socket_ = -1;
  std::string received_;
};

/// One request on a connection of its own.
HttpResponse http_get(uint16_t port, std::string_view path);
HttpResponse http_post(uint16_t port, std::string_view path, std::string_view body,
                       std::string_view extra_headers = "");

}  // namespace onecard::test
