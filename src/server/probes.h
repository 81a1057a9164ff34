// What orchestrators and dashboards ask: /health, /ping, /load, /version, /metrics.
#pragma once

#include "server/http/router.h"
#include "server/service.h"

namespace onecard::server {

void add_probes(http::Router& router, Service& service);

}  // namespace onecard::server
