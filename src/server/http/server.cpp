#include "server/http/server.h"

#include <pthread.h>

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "server/http/wire.h"
#include "server/ids.h"

namespace onecard::server::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::string_view kKeepAliveComment = ": keep-alive\n\n";
// How long an answer to a request that was not read to its end may take to arrive.
constexpr std::chrono::seconds kLingerTime{2};
constexpr size_t kReadBytes = 16 << 10;

}  // namespace

class Connection;

struct Server::Impl {
  explicit Impl(const ServerOptions& options_in)
      : options(options_in), acceptor(asio::make_strand(io)) {}

  asio::awaitable<void> accept_loop();
  void drain();

  const ServerOptions options;
  uint16_t port = 0;
  Handler* handler = nullptr;
  std::atomic<bool> draining{false};
  std::atomic<int> num_active{0};
  std::atomic<int> num_connections{0};
  std::mutex mutex;  // guards connections
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;
  // Below what connections use: they die with it at the latest.
  asio::io_context io;
  tcp::acceptor acceptor;  // on a strand; only accept_loop() and drain() touch it
  std::vector<std::jthread> threads;
};

// One client. Everything runs on the socket's strand; alive as long as its coroutine or a wake-up
// on its way needs it.
class Connection final : public ResponseWriter, public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Server::Impl& server)
      : server_(server),
        options_(server.options),
        socket_(std::move(socket)),
        watchdog_(socket_.get_executor()),
        wake_timer_(socket_.get_executor()) {
    server_.num_connections.fetch_add(1);
  }
  ~Connection() override {
    {
      const std::lock_guard lock(server_.mutex);
      server_.connections.erase(this);
    }
    server_.num_connections.fetch_sub(1);
  }

  tcp::socket::executor_type executor() { return socket_.get_executor(); }

  asio::awaitable<void> serve();

  /// Strand. Ends the connection if no request is under way.
  void close_if_idle() {
    if (idle_) close();
  }

  void send(Response response) override;
  void start_stream(Response head) override;
  void write(std::string_view bytes) override;
  void end_stream() override;

 private:
  using Parser = beast::http::request_parser<beast::http::string_body>;
  using Milliseconds = std::chrono::milliseconds;

  asio::awaitable<bool> read_request(Request& request);
  bool refuse(int status, const std::string& message);
  asio::awaitable<void> send_refusal();
  asio::awaitable<void> answer(Request request);
  asio::awaitable<void> watch_for_disconnect();
  asio::awaitable<void> end_watch();
  asio::awaitable<bool> flush();
  asio::awaitable<void> linger();
  Wake make_wake();
  bool advance(Exchange& exchange);
  void append_head(const Response& response, std::optional<size_t> content_length);

  // The socket is closed unless disarm() or arm() comes in time.
  void arm(Milliseconds time);
  void disarm() { watchdog_.cancel(); }
  void close() {
    error_code ignored;
    socket_.close(ignored);
  }

  Server::Impl& server_;
  const ServerOptions& options_;
  tcp::socket socket_;
  asio::steady_timer watchdog_;
  asio::steady_timer wake_timer_;
  beast::flat_buffer buffer_;  // received, not yet parsed
  bool idle_ = true;           // between requests
  uint64_t num_armed_ = 0;

  // Of the request that is being answered.
  std::string request_id_;
  bool keep_alive_ = true;  // the client wants another request after this one
  bool http_1_0_ = false;   // knows no chunks
  bool head_only_ = false;
  std::string out_;  // to be sent
  int status_ = 0;   // of the answer; 0 until it begins
  bool chunked_ = false;
  bool event_stream_ = false;  // has begun and has not ended
  bool woken_ = false;
  bool gone_ = false;
  bool watching_ = false;     // the watch coroutine is alive
  bool watch_ended_ = false;  // and has to end
  asio::cancellation_signal stop_watching_;
  std::atomic<bool> wake_posted_{false};
};

void Connection::arm(Milliseconds time) {
  watchdog_.expires_after(time);
  watchdog_.async_wait([weak = weak_from_this(), n = ++num_armed_](error_code ec) {
    const auto self = weak.lock();
    // A handler that was already queued when the time was extended must not fire.
    if (!ec && self && n == self->num_armed_) self->close();
  });
}

asio::awaitable<void> Connection::serve() {
  const auto self = shared_from_this();
  error_code ec;
  socket_.set_option(tcp::no_delay(true), ec);
  while (socket_.is_open() && !server_.draining.load()) {
    Request request;
    const bool complete = co_await read_request(request);
    if (complete) {
      co_await answer(std::move(request));
      server_.num_active.fetch_sub(1);
    }
    if (!complete && !out_.empty()) co_await send_refusal();
    if (!complete || !keep_alive_ || gone_) break;
  }
  close();
  disarm();
}

// False: there is no request, and the connection has to end (a refusal has been sent).
asio::awaitable<bool> Connection::read_request(Request& request) {
  out_.clear();
  status_ = 0;
  request_id_.clear();
  keep_alive_ = false;
  http_1_0_ = head_only_ = chunked_ = event_stream_ = gone_ = false;

  // The first byte may take as long as an idle connection may live, the rest of the header not.
  idle_ = true;
  if (buffer_.size() == 0) {
    arm(options_.idle_timeout);
    const auto [ec, size] = co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kAsTuple);
    if (ec) co_return false;
    buffer_.commit(size);
  }
  idle_ = false;
  arm(options_.header_timeout);

  const std::string too_large =
      "the request's body is larger than " + std::to_string(options_.max_body_bytes) + " bytes";
  Parser parser;
  parser.header_limit(uint32_t(options_.max_header_bytes));
  parser.body_limit(options_.max_body_bytes);
  auto [header_error, header_size] =
      co_await beast::http::async_read_header(socket_, buffer_, parser, kAsTuple);
  if (header_error == beast::http::error::header_limit)
    co_return refuse(431, "the request's header is larger than " +
                              std::to_string(options_.max_header_bytes) + " bytes");
  if (header_error == beast::http::error::body_limit) co_return refuse(413, too_large);
  if (header_error == beast::http::error::end_of_stream ||
      header_error == beast::http::error::partial_message)
    co_return false;
  if (header_error.category() == make_error_code(beast::http::error::bad_version).category())
    co_return refuse(400, "this is not an HTTP/1.1 request: " + header_error.message());
  if (header_error) co_return false;  // the socket's own: reset, or closed by the watchdog

  const auto& message = parser.get();
  http_1_0_ = message.version() < 11;
  if (parser.content_length().value_or(0) > options_.max_body_bytes)
    co_return refuse(413, too_large);
  if (beast::iequals(message[beast::http::field::expect], "100-continue")) {
    out_ = "HTTP/1.1 100 Continue\r\n\r\n";
    const bool sent = co_await flush();
    if (!sent) co_return false;
  }
  arm(options_.body_timeout);
  if (!parser.is_done()) {
    auto [body_error, body_size] =
        co_await beast::http::async_read(socket_, buffer_, parser, kAsTuple);
    if (body_error == beast::http::error::body_limit) co_return refuse(413, too_large);
    if (body_error &&
        body_error.category() == make_error_code(beast::http::error::bad_version).category() &&
        body_error != beast::http::error::partial_message)
      co_return refuse(400, "the request's body is broken: " + body_error.message());
    if (body_error) co_return false;
  }
  disarm();

  keep_alive_ = parser.get().keep_alive();
  auto received = parser.release();
  request.method = std::string(received.method_string());
  head_only_ = request.method == "HEAD";
  if (head_only_) request.method = "GET";
  const std::string target(received.target());
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : received)
    request.headers.emplace_back(lower_case(std::string_view(field.name_string())),
                                 std::string(field.value()));
  request.body = std::move(received.body());
  const std::string* id = request.header("x-request-id");
  request.id = id != nullptr && is_request_id(*id) ? *id : random_id("req-");
  server_.num_active.fetch_add(1);
  co_return true;
}

// What read_request() returns when there is something to say first.
bool Connection::refuse(int status, const std::string& message) {
  request_id_ = random_id("req-");
  send(server_.handler->transport_error(status, message));
  return false;
}

asio::awaitable<void> Connection::send_refusal() {
  const bool sent = co_await flush();
  if (sent) co_await linger();
}

// Closing a socket with unread bytes resets it, and the client may lose an answer that it has not
// read yet: say that we are done, and let it finish.
asio::awaitable<void> Connection::linger() {
  error_code ec;
  socket_.shutdown(tcp::socket::shutdown_send, ec);
  arm(kLingerTime);
  buffer_.clear();
  while (!ec) {
    const auto [read_error, size] =
        co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kAsTuple);
    ec = read_error;
  }
}

asio::awaitable<void> Connection::answer(Request request) {
  const auto started = std::chrono::steady_clock::now();
  request_id_ = request.id;
  const std::string method = request.method;
  const std::string path = request.path;
  watching_ = true;
  watch_ended_ = false;
  asio::co_spawn(
      executor(),
      [self = shared_from_this()]() -> asio::awaitable<void> {
        return self->watch_for_disconnect();
      },
      asio::bind_cancellation_slot(stop_watching_.slot(), asio::detached));

  std::unique_ptr<Exchange> exchange;
  try {
    exchange = server_.handler->start(std::move(request), make_wake());
  } catch (const std::exception& error) {
    log::error("handler_failed", {{"request_id", request_id_}, {"error", error.what()}});
    exchange = ready(server_.handler->transport_error(500, "internal error"));
  }

  bool done = false;
  auto last_write = std::chrono::steady_clock::now();
  while (!gone_) {
    woken_ = false;
    done = advance(*exchange);
    if (!out_.empty()) {
      const bool sent = co_await flush();
      gone_ = gone_ || !sent;
      last_write = std::chrono::steady_clock::now();
    }
    if (done) break;
    while (!woken_ && !gone_) {
      wake_timer_.expires_at(last_write + options_.keep_alive_interval);
      co_await wake_timer_.async_wait(kAsTuple);
      if (woken_ || gone_ || std::chrono::steady_clock::now() < wake_timer_.expiry()) continue;
      if (event_stream_) {
        write(kKeepAliveComment);
        const bool sent = co_await flush();
        gone_ = gone_ || !sent;
      }
      last_write = std::chrono::steady_clock::now();
    }
  }
  exchange.reset();  // cancels what is still running
  co_await end_watch();

  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  log::event(method == "GET" ? log::Level::kDebug : log::Level::kInfo, "http_request",
             {{"request_id", request_id_},
              {"method", method},
              {"path", path},
              {"status", done ? std::to_string(status_) : "client_gone"},
              {"seconds", std::to_string(seconds)}});
}

bool Connection::advance(Exchange& exchange) {
  try {
    return exchange.advance(*this);
  } catch (const std::exception& error) {
    log::error("handler_failed", {{"request_id", request_id_}, {"error", error.what()}});
    keep_alive_ = false;  // a stream that has begun just ends
    if (status_ == 0) send(server_.handler->transport_error(500, "internal error"));
    return true;
  }
}

// While a request is answered nobody reads the socket; this does, to learn that the client has
// gone. What arrives is the next request.
asio::awaitable<void> Connection::watch_for_disconnect() {
  // Beyond the limit it is too much to hold: stop looking.
  while (!watch_ended_ && buffer_.size() < options_.max_header_bytes) {
    const auto [ec, size] = co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kAsTuple);
    if (ec) {
      gone_ = !watch_ended_;
      break;
    }
    buffer_.commit(size);
  }
  watching_ = false;
  wake_timer_.cancel();
}

asio::awaitable<void> Connection::end_watch() {
  watch_ended_ = true;
  stop_watching_.emit(asio::cancellation_type::all);
  while (watching_) {
    wake_timer_.expires_at(std::chrono::steady_clock::time_point::max());
    co_await wake_timer_.async_wait(kAsTuple);
  }
}

Wake Connection::make_wake() {
  return [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->wake_posted_.exchange(true)) return;
    asio::post(self->executor(), [self] {
      self->wake_posted_.store(false);
      self->woken_ = true;
      self->wake_timer_.cancel();
    });
  };
}

asio::awaitable<bool> Connection::flush() {
  arm(options_.write_timeout);
  const auto [ec, size] = co_await asio::async_write(socket_, asio::buffer(out_), kAsTuple);
  out_.clear();
  disarm();
  co_return !ec;
}

void Connection::append_head(const Response& response, std::optional<size_t> content_length) {
  status_ = response.status;
  out_ += status_line(response.status);
  out_ += "Server: onecard\r\n";
  if (!response.content_type.empty()) append_header(out_, "Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) append_header(out_, name, value);
  for (const auto& [name, value] : options_.response_headers) append_header(out_, name, value);
  append_header(out_, "X-Request-Id", request_id_);
  if (content_length)
    append_header(out_, "Content-Length", std::to_string(*content_length));
  else if (chunked_)
    append_header(out_, "Transfer-Encoding", "chunked");
  if (server_.draining.load()) keep_alive_ = false;
  if (!keep_alive_)
    append_header(out_, "Connection", "close");
  else if (http_1_0_)
    append_header(out_, "Connection", "keep-alive");
  out_ += "\r\n";
}

void Connection::send(Response response) {
  append_head(response, response.body.size());
  if (!head_only_) out_ += response.body;
}

void Connection::start_stream(Response head) {
  chunked_ = !http_1_0_;
  if (http_1_0_) keep_alive_ = false;  // the end of the connection is the end of the body
  event_stream_ = head.content_type.starts_with("text/event-stream");
  append_head(head, std::nullopt);
}

void Connection::write(std::string_view bytes) {
  if (bytes.empty()) return;  // an empty chunk would end the body
  if (chunked_) append_chunk_size(out_, bytes.size());
  out_ += bytes;
  if (chunked_) out_ += "\r\n";
}

void Connection::end_stream() {
  if (chunked_) out_ += "0\r\n\r\n";
  event_stream_ = false;
}

asio::awaitable<void> Server::Impl::accept_loop() {
  for (;;) {
    auto [ec, socket] = co_await acceptor.async_accept(asio::make_strand(io), kAsTuple);
    if (draining.load() || ec == asio::error::operation_aborted ||
        ec == asio::error::bad_descriptor)
      co_return;
    if (ec) {  // out of descriptors, or the client gave up: go on in a moment
      log::warn("accept_failed", {{"error", ec.message()}});
      asio::steady_timer pause(io, std::chrono::milliseconds(100));
      co_await pause.async_wait(kAsTuple);
      continue;
    }
    if (num_connections.load() >= options.max_connections) {
      constexpr std::string_view kBusy =
          "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
      error_code ignored;
      socket.non_blocking(true, ignored);
      socket.write_some(asio::buffer(kBusy), ignored);
      continue;
    }
    const auto connection = std::make_shared<Connection>(std::move(socket), *this);
    {
      const std::lock_guard lock(mutex);
      connections.emplace(connection.get(), connection);
    }
    asio::co_spawn(
        connection->executor(), [connection] { return connection->serve(); },
        [](const std::exception_ptr& error) {  // out of memory: this connection ends
          if (!error) return;
          try {
            std::rethrow_exception(error);
          } catch (const std::exception& e) {
            log::error("connection_failed", {{"error", e.what()}});
          }
        });
  }
}

void Server::Impl::drain() {
  draining.store(true);
  asio::post(acceptor.get_executor(), [this] {
    error_code ignored;
    acceptor.close(ignored);
  });
  std::vector<std::shared_ptr<Connection>> open;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [key, weak] : connections)
      if (auto connection = weak.lock()) open.push_back(std::move(connection));
  }
  for (const auto& connection : open)
    asio::post(connection->executor(), [connection] { connection->close_if_idle(); });
}

Server::Server(const ServerOptions& options) : impl_(std::make_unique<Impl>(options)) {
  error_code ec;
  const auto address = asio::ip::make_address(
      options.host == "localhost" ? std::string("127.0.0.1") : options.host, ec);
  if (ec)
    throw Error(ErrorCode::kInvalidArgument, "host: \"" + options.host + "\" is not an IP address");
  const tcp::endpoint endpoint(address, options.port);
  const auto bind = [&] {
    impl_->acceptor.open(endpoint.protocol(), ec);
    if (!ec) impl_->acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) impl_->acceptor.bind(endpoint, ec);
    if (!ec) impl_->acceptor.listen(asio::socket_base::max_listen_connections, ec);
  };
  bind();
  if (ec)
    throw Error(ErrorCode::kIo, "listening on " + options.host + ":" +
                                    std::to_string(options.port) + ": " + ec.message());
  impl_->port = impl_->acceptor.local_endpoint().port();
}

Server::~Server() { stop(); }

uint16_t Server::port() const { return impl_->port; }

void Server::run(Handler& handler) {
  impl_->handler = &handler;
  asio::co_spawn(impl_->acceptor.get_executor(), impl_->accept_loop(), asio::detached);
  for (int i = 0; i < impl_->options.num_threads; ++i)
    impl_->threads.emplace_back([impl = impl_.get()] {
      pthread_setname_np(pthread_self(), "http");
      const auto work = asio::make_work_guard(impl->io);
      impl->io.run();
    });
}

void Server::drain() { impl_->drain(); }
int Server::num_active() const { return impl_->num_active.load(); }
int Server::num_connections() const { return impl_->num_connections.load(); }

void Server::stop() {
  impl_->io.stop();
  impl_->threads.clear();
}

}  // namespace onecard::server::http
