#include "server/openai/endpoints.h"

#include <utility>

#include "base/json.h"
#include "server/openai/chat_completions.h"
#include "server/openai/completions.h"
#include "server/openai/responses.h"
#include "server/openai/tokenizer_endpoints.h"

namespace onecard::server::openai {
namespace {

json::Value model_json(const Service& service, const std::string& name) {
  json::Value model = json::Value::object();
  model.set("id", json::Value::string(name));
  model.set("object", json::Value::string("model"));
  model.set("created", json::Value::integer(service.created()));
  model.set("owned_by", json::Value::string("onecard"));
  model.set("root", json::Value::string(service.options().model_names.front()));
  model.set("parent", json::Value());
  model.set("max_model_len", json::Value::integer(service.context_length()));
  model.set("permission", json::Value::array());
  return model;
}

std::unique_ptr<http::Exchange> answer(const json::Value& value) {
  http::Response response;
  response.body = json::dump(value);
  return http::ready(std::move(response));
}

}  // namespace

void add_endpoints(http::Router& router, Service& service) {
  router.add("GET", "/v1/models", [&service](http::Request&&, http::Wake&&) {
    json::Value list = json::Value::object();
    list.set("object", json::Value::string("list"));
    json::Value models = json::Value::array();
    for (const std::string& name : service.options().model_names)
      models.items().push_back(model_json(service, name));
    list.set("data", std::move(models));
    return answer(list);
  });
  router.add("GET", "/v1/models/", [&service](http::Request&& request, http::Wake&&) {
    const std::string name =
        http::percent_decoded(std::string_view(request.path).substr(sizeof("/v1/models/") - 1));
    return answer(model_json(service, service.model_name(name)));
  });
  router.add("POST", "/v1/chat/completions",
             [&service](http::Request&& request, http::Wake&& wake) {
               return start_chat_completion(service, request, wake);
             });
  router.add("POST", "/v1/completions", [&service](http::Request&& request, http::Wake&& wake) {
    return start_completion(service, request, wake);
  });
  router.add("POST", "/v1/responses", [&service](http::Request&& request, http::Wake&& wake) {
    return start_response(service, request, wake);
  });
  add_tokenizer_endpoints(router, service);
}

}  // namespace onecard::server::openai
