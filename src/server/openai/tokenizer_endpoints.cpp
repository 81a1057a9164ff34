#include "server/openai/tokenizer_endpoints.h"

#include <utility>

#include "base/json.h"
#include "server/fields.h"
#include "server/openai/chat_request.h"
#include "server/openai/token_json.h"
#include "text/chat_encoder.h"
#include "text/chat_tokens.h"
#include "text/detokenizer.h"

namespace onecard::server::openai {
namespace {

// "prompt" as it stands, or "messages" as a chat would render them.
std::vector<int32_t> ids_of(const Service& service, const json::Value& body) {
  const Fields fields(body);
  service.model_name(fields.string("model").value_or(""));
  for (const char* key : {"prompt", "content", "text"}) {
    std::optional<std::string> text = fields.string(key);
    if (!text) continue;
    if (fields.boolean("add_special_tokens").value_or(false) && !text->starts_with(text::kBos))
      text->insert(0, text::kBos);
    return service.tokenizer().encode(*text);
  }
  if (fields.find("messages") == nullptr) fields.refuse("prompt", "is missing, and so is messages");
  const text::Conversation conversation =
      text::conversation_from_json(body, service.options().chat);
  return text::encode_ids(text::encode_chat(conversation), service.tokenizer(),
                          service.options().client_markup);
}

http::Response tokenize(const Service& service, const http::Request& request) {
  const json::Value body = json::parse(request.body);
  const std::vector<int32_t> ids = ids_of(service, body);
  http::Response response;
  std::string& out = response.body;
  out = "{\"count\":" + std::to_string(ids.size()) +
        ",\"max_model_len\":" + std::to_string(service.context_length()) +
        ",\"tokens\":" + json::dump(ids_json(ids)) + ",\"token_strs\":";
  if (!Fields(body).boolean("return_token_strs").value_or(true)) {
    out += "null}";
    return response;
  }
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    json::append_quoted(out, shown_token(ids[i], service.tokenizer(), false));
  }
  out += "]}";
  return response;
}

http::Response detokenize(const Service& service, const http::Request& request) {
  const json::Value body = json::parse(request.body);
  const Fields fields(body);
  service.model_name(fields.string("model").value_or(""));
  const std::optional<std::vector<int32_t>> ids = fields.token_ids("tokens");
  if (!ids) fields.refuse("tokens", "is missing");
  text::Detokenizer detokenizer(service.tokenizer());
  std::string text;
  for (const int32_t id : *ids) {
    if (id >= service.tokenizer().vocab_size())
      fields.refuse("tokens", "no token has the id " + std::to_string(id));
    detokenizer.push(id, text);
  }
  detokenizer.finish(text);
  http::Response response;
  response.body = "{\"prompt\":";
  json::append_quoted(response.body, text);
  response.body += '}';
  return response;
}

}  // namespace

void add_tokenizer_endpoints(http::Router& router, Service& service) {
  for (const char* path : {"/tokenize", "/v1/tokenize", "/v1/token/encode"})
    router.add("POST", path, [&service](http::Request&& request, http::Wake&&) {
      return http::ready(tokenize(service, request));
    });
  for (const char* path : {"/detokenize", "/v1/detokenize"})
    router.add("POST", path, [&service](http::Request&& request, http::Wake&&) {
      return http::ready(detokenize(service, request));
    });
}

}  // namespace onecard::server::openai
