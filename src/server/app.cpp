#include "server/app.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "server/anthropic/endpoints.h"
#include "server/http/wire.h"
#include "server/openai/endpoints.h"
#include "server/openai/error_body.h"
#include "server/probes.h"

namespace onecard::server {
namespace {

// Takes the same time wherever the difference is.
bool equal_secrets(const std::string& a, const std::string& b) {
  unsigned difference = a.size() != b.size();
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]);
  return difference == 0;
}

http::Response preflight() {
  http::Response response;
  response.status = 204;
  response.content_type = "";
  response.headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                      {"Access-Control-Allow-Headers", "*, Authorization"},
                      {"Access-Control-Max-Age", "86400"}};
  return response;
}

bool is_json(const http::Request& request) {
  const std::string* type = request.header("content-type");
  if (type == nullptr) return true;  // says nothing: the parser will
  const std::string lower = http::lower_case(*type);
  const std::string media = lower.substr(0, lower.find_first_of("; "));
  return media == "application/json" || media.ends_with("+json");
}

}  // namespace

App::App(Service& service) : service_(service) {
  add_probes(router_, service_);
  openai::add_endpoints(router_, service_);
  anthropic::add_endpoints(router_, service_);
}

std::unique_ptr<http::Exchange> App::start(http::Request request, http::Wake wake) {
  const std::string path = request.path;
  const std::string id = request.id;
  const auto refuse = [&](const ApiError& error) {
    if (error.status() == 500)
      log::error("request_failed", {{"request_id", id}, {"error", error.what()}});
    return http::ready(path.starts_with("/v1/messages") ? anthropic::error_response(error)
                                                        : openai::error_response(error));
  };
  try {
    return dispatch(request, wake);
  } catch (const ApiError& error) {
    return refuse(error);
  } catch (const Error& error) {
    return refuse(ApiError::from(error));
  }
}

std::unique_ptr<http::Exchange> App::dispatch(http::Request& request, http::Wake& wake) {
  if (request.method == "OPTIONS") return http::ready(preflight());
  const http::Router::Match match = router_.find(request.method, request.path);
  if (match.endpoint == nullptr && match.allowed.empty())
    throw ApiError(404, "There is nothing at " + request.path + ".", "", "not_found");
  if (match.endpoint == nullptr) {
    http::Response response = openai::error_response(
        ApiError(405, request.path + " takes " + match.allowed + ".", "", "method_not_allowed"));
    response.headers.emplace_back("Allow", match.allowed);
    return http::ready(std::move(response));
  }
  check_key(request);
  if (request.method == "POST" && !is_json(request))
    throw ApiError(415, "The body has to be JSON, with Content-Type: application/json.", "",
                   "unsupported_media_type");
  return (*match.endpoint)(std::move(request), std::move(wake));
}

void App::check_key(const http::Request& request) const {
  const std::vector<std::string>& keys = service_.options().api_keys;
  if (keys.empty() || !request.path.starts_with("/v1")) return;
  std::string given;
  constexpr std::string_view kBearer = "bearer ";
  if (const std::string* header = request.header("authorization");
      header != nullptr && http::lower_case(header->substr(0, kBearer.size())) == kBearer)
    given = header->substr(kBearer.size());
  else if (const std::string* key = request.header("x-api-key"))
    given = *key;
  bool known = false;
  for (const std::string& key : keys) known |= equal_secrets(given, key);
  if (!known)
    throw ApiError(401, given.empty() ? "No API key was given." : "The API key is not known.", "",
                   "invalid_api_key");
}

http::Response App::transport_error(int status, const std::string& message) {
  return openai::error_response(ApiError(status, message));
}

}  // namespace onecard::server
