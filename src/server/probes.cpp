#include "server/probes.h"

#include <utility>

namespace onecard::server {
namespace {

http::Response health(const Service& service, const engine::Engine& engine) {
  http::Response response;
  response.content_type = "";
  if (engine.state() == engine::State::kReady) return response;
  response.status = 503;
  if (engine.state() == engine::State::kDraining)
    response.headers.emplace_back("Retry-After",
                                  std::to_string(service.options().retry_after_seconds));
  return response;
}

http::Response json_body(std::string body) {
  http::Response response;
  response.body = std::move(body);
  return response;
}

}  // namespace

void add_probes(http::Router& router, Service& service) {
  const auto add_health = [&](const char* method, const char* path) {
    router.add(method, path, [&service](http::Request&&, http::Wake&&) {
      return http::ready(health(service, service.engine()));
    });
  };
  add_health("GET", "/health");
  add_health("GET", "/ping");
  add_health("POST", "/ping");
  router.add("GET", "/version", [](http::Request&&, http::Wake&&) {
    return http::ready(json_body("{\"version\":\"" ONECARD_VERSION "\"}"));
  });
  router.add("GET", "/load", [&service](http::Request&&, http::Wake&&) {
    const engine::Counters counters = service.engine().counters();
    return http::ready(json_body(
        "{\"server_load\":" + std::to_string(counters.num_running + counters.num_waiting) + "}"));
  });
  router.add("GET", "/metrics", [&service](http::Request&&, http::Wake&&) {
    http::Response response = json_body(service.metrics().render(service.engine().counters()));
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    return http::ready(std::move(response));
  });
}

}  // namespace onecard::server
