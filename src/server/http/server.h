// The HTTP/1.1 transport: sockets, limits, time-outs, keep-alive, client disconnects. Knows no
// endpoint. The constructor binds; run() starts the threads; the destructor stops them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/http/exchange.h"

namespace onecard::server::http {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int num_threads = 2;
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 64 << 20;
  int max_connections = 2048;                       // more are answered 503 and closed
  std::vector<Header> response_headers = {};        // on every answer
  std::chrono::milliseconds idle_timeout{75000};    // between requests
  std::chrono::milliseconds header_timeout{20000};  // from a request's first byte
  std::chrono::milliseconds body_timeout{120000};
  std::chrono::milliseconds write_timeout{60000};        // without any progress of a write
  std::chrono::milliseconds keep_alive_interval{15000};  // between comments of a quiet event stream
};

class Server {
 public:
  /// Throws kInvalidArgument for a host that is no address, kIo when it cannot be bound.
  explicit Server(const ServerOptions& options);
  /// As stop().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;

  /// Starts to accept and answer. `handler` has to live until stop() has returned.
  void run(Handler& handler);

  /// Accepts no more connections, closes idle ones, and lets every other one finish its request.
  void drain();
  /// Requests that are being received or answered.
  int num_active() const;
  int num_connections() const;

  /// Drops every connection and joins the threads. Wake functions may be called until the server is
  /// destroyed: destroy what calls them first.
  void stop();

 private:
  friend class Connection;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onecard::server::http
