// /tokenize, /detokenize and their kin.
#pragma once

#include "server/http/router.h"
#include "server/service.h"

namespace onecard::server::openai {

void add_tokenizer_endpoints(http::Router& router, Service& service);

}  // namespace onecard::server::openai
