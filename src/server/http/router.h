// Which endpoint answers a request: by path, then by method.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/exchange.h"

namespace onecard::server::http {

using Endpoint = std::function<std::unique_ptr<Exchange>(Request&& request, Wake&& wake)>;

class Router {
 public:
  /// A path that ends in "/" stands for everything below it.
  void add(std::string_view method, std::string_view path, Endpoint endpoint);

  struct Match {
    const Endpoint* endpoint = nullptr;  // null: see `allowed`
    std::string allowed;  // the methods that the path knows, "GET, POST"; empty: an unknown path
  };
  Match find(std::string_view method, std::string_view path) const;

 private:
  struct Route {
    std::string method;
    std::string path;
    Endpoint endpoint;
  };
  std::vector<Route> routes_;
};

/// %41 -> A; what is no escape stays.
std::string percent_decoded(std::string_view text);

}  // namespace onecard::server::http
