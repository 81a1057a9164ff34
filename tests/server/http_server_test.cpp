// The transport over real sockets on loopback, with handlers that a test controls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "base/error.h"
#include "server/http/server.h"
#include "support/http_client.h"

namespace onecard::server::http {
namespace {

using std::chrono::milliseconds;
using test::HttpClient;
using test::HttpResponse;
using testing::HasSubstr;

// What a test and an exchange share: the test feeds, the exchange writes, the test sees its end.
class Script {
 public:
  void feed(const std::string& text, bool last = false) {
    Wake wake;
    {
      const std::lock_guard lock(mutex_);
      pending_ += text;
      last_ = last_ || last;
      wake = wake_;
    }
    if (wake) wake();
  }
  void wait_until_destroyed() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return destroyed_; });
  }
  void wait_until_started() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return bool(wake_); });
  }
  bool destroyed() {
    const std::lock_guard lock(mutex_);
    return destroyed_;
  }

  // Of the exchange.
  void start(Wake wake) {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
    changed_.notify_all();
  }
  std::pair<std::string, bool> take() {
    const std::lock_guard lock(mutex_);
    return {std::exchange(pending_, ""), last_};
  }
  void destroy() {
    const std::lock_guard lock(mutex_);
    destroyed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  Wake wake_;
  std::string pending_;
  bool last_ = false;
  bool destroyed_ = false;
};

class ScriptedExchange final : public Exchange {
 public:
  ScriptedExchange(std::shared_ptr<Script> script, bool stream)
      : script_(std::move(script)), stream_(stream) {}
  ~ScriptedExchange() override { script_->destroy(); }
  void start(Wake wake) { script_->start(std::move(wake)); }

  bool advance(ResponseWriter& writer) override {
    if (stream_ && !std::exchange(begun_, true))
      writer.start_stream({.content_type = "text/event-stream"});
    const auto [text, last] = script_->take();
    if (stream_) {
      writer.write(text);
      if (last) writer.end_stream();
    } else {
      body_ += text;
      if (last) writer.send({.body = body_});
    }
    return last;
  }

 private:
  std::shared_ptr<Script> script_;
  const bool stream_;
  bool begun_ = false;
  std::string body_;
};

// Writes a block at every call, for as long as it is called.
class FloodExchange final : public Exchange {
 public:
  FloodExchange(Script& script, std::atomic<int>& num_calls, Wake wake)
      : script_(script), num_calls_(num_calls), wake_(std::move(wake)) {}
  ~FloodExchange() override { script_.destroy(); }
  bool advance(ResponseWriter& writer) override {
    if (num_calls_++ == 0) writer.start_stream({.content_type = "text/plain"});
    writer.write(std::string(1 << 20, 'x'));
    wake_();
    return false;
  }

 private:
  Script& script_;
  std::atomic<int>& num_calls_;
  Wake wake_;
};

class ThrowingExchange final : public Exchange {
 public:
  bool advance(ResponseWriter&) override { throw std::runtime_error("broken"); }
};

class TestHandler final : public Handler {
 public:
  std::unique_ptr<Exchange> start(Request request, Wake wake) override {
    if (request.path == "/stream" || request.path == "/late") {
      // The test may put another script here as soon as this one has started.
      auto exchange = std::make_unique<ScriptedExchange>(script, request.path == "/stream");
      exchange->start(std::move(wake));
      return exchange;
    }
    if (request.path == "/flood")
      return std::make_unique<FloodExchange>(*script, num_calls, std::move(wake));
    if (request.path == "/throw") throw std::runtime_error("broken");
    if (request.path == "/throw_later") return std::make_unique<ThrowingExchange>();
    const std::string* extra = request.header("x-extra");
    return ready({.body = request.method + " " + request.path + "?" + request.query + " " +
                          (extra != nullptr ? *extra : "-") + " " + request.body});
  }
  Response transport_error(int status, const std::string& message) override {
    return {.status = status, .body = "{\"error\":\"" + message + "\"}"};
  }

  std::shared_ptr<Script> script = std::make_shared<Script>();
  std::atomic<int> num_calls{0};
};

class HttpServerTest : public testing::Test {
 protected:
  void open(ServerOptions options = {}) {
    server_.emplace(options);
    server_->run(handler_);
  }
  uint16_t port() const { return server_->port(); }

  TestHandler handler_;
  std::optional<Server> server_;
};

TEST_F(HttpServerTest, AnswersSeveralRequestsOnOneConnection) {
  open();
  HttpClient client(port());
  client.request("GET", "/a?b=c", "", "X-Extra: d\r\n");
  const HttpResponse first = client.read_response();
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.body, "GET /a?b=c d ");
  EXPECT_EQ(first.header("content-type"), "application/json");
  client.request("POST", "/b", "{\"x\":1}");
  EXPECT_EQ(client.read_response().body, "POST /b? - {\"x\":1}");
  // Two at once, and a body in chunks.
  client.send(
      "GET /1 HTTP/1.1\r\nHost: t\r\n\r\nPOST /2 HTTP/1.1\r\nHost: t\r\n"
      "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_response().body, "GET /1? - ");
  EXPECT_EQ(client.read_response().body, "POST /2? - abcde");
}

TEST_F(HttpServerTest, HeadGetsTheHeadAlone) {
  open();
  HttpClient client(port());
  client.request("HEAD", "/a");
  const HttpResponse head = client.read_head();
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.header("content-length"), "0");
  client.request("GET", "/b");
  EXPECT_EQ(client.read_response().body, "GET /b? - ");
}

TEST_F(HttpServerTest, RequestIdsComeBackUnlessTheyAreNoIds) {
  open();
  HttpClient client(port());
  client.request("GET", "/", "", "X-Request-Id: abc-1\r\n");
  EXPECT_EQ(client.read_response().header("x-request-id"), "abc-1");
  client.request("GET", "/", "", "X-Request-Id: has blank\r\n");
  const std::string ours = client.read_response().header("x-request-id");
  EXPECT_TRUE(ours.starts_with("req-")) << ours;
}

TEST_F(HttpServerTest, OldClientsGetNoChunks) {
  open();
  HttpClient client(port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  handler_.script->feed("one");
  handler_.script->feed("two", true);
  const HttpResponse response = client.read_response();
  EXPECT_EQ(response.body, "onetwo");
  EXPECT_EQ(response.header("transfer-encoding"), "");
}

TEST_F(HttpServerTest, SendsWhatIsThereWhileTheStreamGoesOn) {
  open();
  HttpClient client(port());
  client.request("GET", "/stream");
  handler_.script->feed("first");
  EXPECT_THAT(client.read_until("first"), HasSubstr("Transfer-Encoding: chunked"));
  handler_.script->feed("second");
  client.read_until("second");
  EXPECT_FALSE(handler_.script->destroyed());
  handler_.script->feed("", true);
  EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("0\r\n\r\n"));
  client.request("GET", "/next");
  EXPECT_EQ(client.read_response().body, "GET /next? - ");
}

TEST_F(HttpServerTest, AQuietStreamGetsComments) {
  open({.keep_alive_interval = milliseconds(20)});
  HttpClient client(port());
  client.request("GET", "/stream");
  client.read_until(": keep-alive\n\n");
  client.read_until(": keep-alive\n\n");
  handler_.script->feed("data", true);
  EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("data"));
}

TEST_F(HttpServerTest, AQuietAnswerThatIsNoStreamGetsNone) {
  open({.keep_alive_interval = milliseconds(5)});
  HttpClient client(port());
  client.request("GET", "/late");
  HttpClient other(port());  // its comments show that the interval has passed several times
  handler_.script->wait_until_started();
  const auto script = std::exchange(handler_.script, std::make_shared<Script>());
  other.request("GET", "/stream");
  for (int i = 0; i < 5; ++i) other.read_until(": keep-alive\n\n");
  script->feed("x", true);
  EXPECT_EQ(client.read_response().body, "x");
}

struct Leaving {
  const char* name;
  const char* path;
  std::function<void(std::optional<HttpClient>&)> leave;
};
void PrintTo(const Leaving& c, std::ostream* os) { *os << c.name; }
class HttpServerLeaving : public HttpServerTest, public testing::WithParamInterface<Leaving> {};

TEST_P(HttpServerLeaving, EndsTheExchange) {
  open();
  std::optional<HttpClient> client(std::in_place, port());
  client->request("GET", GetParam().path);
  handler_.script->wait_until_started();
  GetParam().leave(client);
  handler_.script->wait_until_destroyed();
  handler_.script->feed("too late");  // a wake-up after the end is harmless
  EXPECT_EQ(test::http_get(port(), "/next").body, "GET /next? - ");
}

INSTANTIATE_TEST_SUITE_P(
    , HttpServerLeaving,
    testing::Values(Leaving{"stream_closed", "/stream", [](auto& client) { client.reset(); }},
                    Leaving{"stream_reset", "/stream", [](auto& client) { client->reset(); }},
                    Leaving{"whole_closed", "/late", [](auto& client) { client.reset(); }},
                    Leaving{"whole_reset", "/late", [](auto& client) { client->reset(); }},
                    Leaving{"half_closed", "/late", [](auto& client) { client->shut_down(); }},
                    Leaving{"after_pipelining", "/late", [](auto& client) {
                              client->send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
                              client.reset();
                            }}));

TEST_F(HttpServerTest, ASlowClientHoldsItsProducerBackAndIsDroppedInTheEnd) {
  open({.write_timeout = milliseconds(200)});
  HttpClient client(port(), /*receive_buffer_bytes=*/4096);
  client.request("GET", "/flood");
  handler_.script->wait_until_destroyed();
  // What the two sockets' buffers hold, and no more: a few MiB.
  EXPECT_LT(handler_.num_calls.load(), 32);
}

TEST_F(HttpServerTest, LimitsAreSaid) {
  open({.max_header_bytes = 2048, .max_body_bytes = 1000});
  const std::string big(5000, 'x');
  EXPECT_EQ(test::http_post(port(), "/", big).status, 413);
  {
    HttpClient chunked(port());
    chunked.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n" + big +
                 "\r\n0\r\n\r\n");
    EXPECT_EQ(chunked.read_response().status, 413);
    EXPECT_TRUE(chunked.at_end());
  }
  HttpClient header(port());
  header.request("GET", "/", "", "X-Extra: " + big + "\r\n");
  EXPECT_EQ(header.read_response().status, 431);
  EXPECT_EQ(test::http_post(port(), "/", std::string(1000, 'x')).status, 200);
}

TEST_F(HttpServerTest, WhatIsNoHttpGetsAnErrorAndTheEnd) {
  open();
  for (const char* bytes :
       {"nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\nbad header\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"}) {
    HttpClient client(port());
    client.send(bytes);
    client.shut_down();
    const HttpResponse response = client.read_response();
    EXPECT_EQ(response.status, 400) << bytes;
    EXPECT_THAT(response.body, HasSubstr("error"));
    EXPECT_TRUE(client.at_end());
  }
}

TEST_F(HttpServerTest, SlowRequestsAreCutOff) {
  open({.idle_timeout = milliseconds(50),
        .header_timeout = milliseconds(50),
        .body_timeout = milliseconds(50)});
  HttpClient silent(port());
  HttpClient slow_header(port());
  slow_header.send("GET / HTTP/1.1\r\nHost:");
  HttpClient slow_body(port());
  slow_body.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_TRUE(silent.at_end());
  EXPECT_TRUE(slow_header.at_end());
  EXPECT_TRUE(slow_body.at_end());
}

TEST_F(HttpServerTest, SaysContinueToAClientThatAsks) {
  open();
  HttpClient client(port());
  client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  client.read_until("100 Continue\r\n\r\n");
  client.send("hi");
  EXPECT_EQ(client.read_response().body, "POST /a? - hi");
}

TEST_F(HttpServerTest, AHandlerThatThrowsIsAnInternalError) {
  open();
  EXPECT_EQ(test::http_get(port(), "/throw").status, 500);
  EXPECT_EQ(test::http_get(port(), "/throw_later").status, 500);
  EXPECT_EQ(test::http_get(port(), "/a").status, 200);
}

TEST_F(HttpServerTest, TooManyConnectionsAreTurnedAway) {
  open({.max_connections = 2});
  HttpClient a(port());
  a.request("GET", "/");
  a.read_response();
  HttpClient b(port());
  b.request("GET", "/");
  b.read_response();
  HttpClient c(port());
  EXPECT_EQ(c.read_response().status, 503);
  EXPECT_TRUE(c.at_end());
}

TEST_F(HttpServerTest, DrainingFinishesWhatRunsAndClosesWhatIsIdle) {
  open();
  HttpClient idle(port());
  idle.request("GET", "/");
  idle.read_response();
  HttpClient busy(port());
  busy.request("GET", "/late");
  handler_.script->wait_until_started();
  server_->drain();
  EXPECT_TRUE(idle.at_end());
  handler_.script->feed("done", true);
  const HttpResponse response = busy.read_response();
  EXPECT_EQ(response.body, "done");
  EXPECT_EQ(response.header("connection"), "close");
  EXPECT_TRUE(busy.at_end());
  const auto is_answered = [&] {
    try {
      HttpClient late(port());
      late.request("GET", "/");
      return late.read_response().status != 0;
    } catch (const std::runtime_error&) {  // nobody listens any more
      return false;
    }
  };
  EXPECT_FALSE(is_answered());
}

TEST_F(HttpServerTest, StoppingEndsWhatRuns) {
  open();
  HttpClient client(port());
  client.request("GET", "/stream");
  handler_.script->wait_until_started();
  server_->stop();
  server_.reset();
  EXPECT_TRUE(handler_.script->destroyed());
}

TEST(HttpServer, RefusesAnAddressItCannotHave) {
  EXPECT_THROW(Server({.host = "no-such-name"}), Error);
  Server first({});
  EXPECT_THROW(Server({.port = first.port()}), Error);
}

}  // namespace
}  // namespace onecard::server::http
