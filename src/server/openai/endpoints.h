// The OpenAI surface: /v1/models, /v1/chat/completions, /v1/completions, and the tokenizer's
// endpoints that came with vLLM.
#pragma once

#include "server/http/router.h"
#include "server/service.h"

namespace onecard::server::openai {

void add_endpoints(http::Router& router, Service& service);

}  // namespace onecard::server::openai
