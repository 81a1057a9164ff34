#include "support/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <stdexcept>

namespace onecard::test {
namespace {

constexpr int kClientPatienceSeconds = 60;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return out;
}

}  // namespace

std::string HttpResponse::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return "";
}

HttpClient::HttpClient(uint16_t port, int receive_buffer_bytes) {
  socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  if (receive_buffer_bytes > 0)
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof(receive_buffer_bytes));
  const timeval patience{.tv_sec = kClientPatienceSeconds, .tv_usec = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    ::close(socket_);
    throw std::runtime_error("connecting to port " + std::to_string(port) + " failed");
  }
}

HttpClient::~HttpClient() {
  if (socket_ >= 0) ::close(socket_);
}

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(size_t(sent));
  }
  return true;
}

bool HttpClient::request(std::string_view method, std::string_view path, std::string_view body,
                         std::string_view extra_headers) {
  std::string text = std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n";
  if (!body.empty())
    text +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  return send(text + std::string(extra_headers) + "\r\n" + std::string(body));
}

bool HttpClient::fill() {
  char buffer[16384];
  const ssize_t size = ::recv(socket_, buffer, sizeof(buffer), 0);
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    throw std::runtime_error("no answer within " + std::to_string(kClientPatienceSeconds) + " s");
  if (size <= 0) return false;
  received_.append(buffer, size_t(size));
  return true;
}

std::string HttpClient::read_until(std::string_view text) {
  size_t from = 0;
  for (;;) {
    const size_t place = received_.find(text, from);
    if (place != std::string::npos) {
      std::string out = received_.substr(0, place + text.size());
      received_.erase(0, place + text.size());
      return out;
    }
    from = received_.size() < text.size() ? 0 : received_.size() - text.size();
    if (!fill()) return std::exchange(received_, "");
  }
}

HttpResponse HttpClient::read_head() {
  HttpResponse response;
  const std::string head = read_until("\r\n\r\n");
  if (!head.ends_with("\r\n\r\n")) return response;
  size_t line = head.find("\r\n");
  response.status = std::stoi(head.substr(head.find(' ') + 1, 3));
  while (line + 2 < head.size()) {
    const size_t next = head.find("\r\n", line + 2);
    const std::string text = head.substr(line + 2, next - line - 2);
    const size_t colon = text.find(": ");
    if (colon != std::string::npos)
      response.headers.emplace_back(lower(text.substr(0, colon)), text.substr(colon + 2));
    line = next;
  }
  return response;
}

HttpResponse HttpClient::read_response() {
  HttpResponse response = read_head();
  if (response.status == 0 || response.status == 204) return response;
  if (response.header("transfer-encoding") == "chunked") {
    for (;;) {
      const std::string line = read_until("\r\n");
      size_t size = 0;
      if (std::from_chars(line.data(), line.data() + line.size(), size, 16).ec != std::errc())
        return response;
      while (received_.size() < size + 2)
        if (!fill()) return response;
      response.body += received_.substr(0, size);
      received_.erase(0, size + 2);
      if (size == 0) return response;
    }
  }
  const std::string length = response.header("content-length");
  if (length.empty()) {
    while (fill()) {
    }
    response.body = std::exchange(received_, "");
    return response;
  }
  const size_t size = std::stoul(length);
  while (received_.size() < size)
    if (!fill()) break;
  response.body = received_.substr(0, size);
  received_.erase(0, size);
  return response;
}

bool HttpClient::at_end() { return received_.empty() && !fill(); }

void HttpClient::shut_down() { ::shutdown(socket_, SHUT_WR); }

void HttpClient::reset() {
  const linger hard{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  ::close(socket_);
  socket_ = -1;
}

HttpResponse http_get(uint16_t port, std::string_view path) {
  HttpClient client(port);
  client.request("GET", path);
  return client.read_response();
}

HttpResponse http_post(uint16_t port, std::string_view path, std::string_view body,
                       std::string_view extra_headers) {
  HttpClient client(port);
  client.request("POST", path, body, extra_headers);
  return client.read_response();
}

}  // namespace onecard::test
