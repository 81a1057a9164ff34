// How a request is answered: by an Exchange that a handler makes and its connection drives.
//
// Every call of one exchange comes from its connection's strand (never two at once, any HTTP
// thread). None may wait: advance() writes what is there and returns; when there is more, whoever
// produces it calls `wake`, from any thread, and the connection comes back. While bytes are on
// their way to a slow client advance() is not called, so a producer with a bounded queue sees its
// reader lag. Destroying an exchange before its end means that the client has gone, or the server
// stops: what it runs has to end.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "server/http/message.h"

namespace onecard::server::http {

using Wake = std::function<void()>;

/// Where an exchange puts its answer: either send() once, or start_stream(), write() any number of
/// times and end_stream().
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  virtual void send(Response response) = 0;
  /// `head.body` is ignored. A stream of server-sent events gets a comment now and then while there
  /// is nothing to write.
  virtual void start_stream(Response head) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void end_stream() = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  /// True once the answer is complete. Throwing ends the connection with a 500 where possible.
  virtual bool advance(ResponseWriter& writer) = 0;
};

/// An answer that is known at once.
class ReadyExchange final : public Exchange {
 public:
  explicit ReadyExchange(Response response) : response_(std::move(response)) {}
  bool advance(ResponseWriter& writer) override {
    writer.send(std::move(response_));
    return true;
  }

 private:
  Response response_;
};

inline std::unique_ptr<Exchange> ready(Response response) {
  return std::make_unique<ReadyExchange>(std::move(response));
}

class Handler {
 public:
  virtual ~Handler() = default;
  /// Called from any HTTP thread, also at the same time for different requests.
  virtual std::unique_ptr<Exchange> start(Request request, Wake wake) = 0;
  /// The body of an error that the transport itself finds (bad syntax, too large, too slow).
  virtual Response transport_error(int status, const std::string& message) = 0;
};

}  // namespace onecard::server::http
