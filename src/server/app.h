// All endpoints behind one handler: routing, keys, content types, errors.
#pragma once

#include <memory>
#include <string>

#include "server/api_error.h"
#include "server/http/exchange.h"
#include "server/http/router.h"
#include "server/service.h"

namespace onecard::server {

class App final : public http::Handler {
 public:
  explicit App(Service& service);

  std::unique_ptr<http::Exchange> start(http::Request request, http::Wake wake) override;
  http::Response transport_error(int status, const std::string& message) override;

 private:
  void check_key(const http::Request& request) const;
  std::unique_ptr<http::Exchange> dispatch(http::Request& request, http::Wake& wake);

  Service& service_;
  http::Router router_;
};

}  // namespace onecard::server
