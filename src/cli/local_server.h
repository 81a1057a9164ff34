// Engine, endpoints and HTTP server of one model in this process, built in order and taken down in
// order. Used from the main thread.
#pragma once

#include <memory>
#include <string>

#include "cli/server_config.h"

namespace onecard::cli {

class LocalServer {
 public:
  /// Binds, loads the model and starts to answer. Throws Error.
  explicit LocalServer(const ServerConfig& config);
  ~LocalServer();
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  std::string url() const;  // "http://127.0.0.1:8000"

  /// Takes nothing new; what runs goes on.
  void drain();
  /// Nothing runs any more, and no connection is open.
  bool idle() const;
  /// Why the engine failed; empty while it works.
  std::string failure() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace onecard::cli
