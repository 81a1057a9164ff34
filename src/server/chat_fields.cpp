#include "server/chat_fields.h"

#include "base/error.h"

namespace onecard::server {

std::string at(std::string_view list, size_t idx) {
  return std::string(list) + "[" + std::to_string(idx) + "]";
}

std::string required_string(const Fields& fields, std::string_view key) {
  std::optional<std::string> value = fields.string(key);
  if (!value) fields.refuse(key, "is missing");
  return std::move(*value);
}

text::Message message_of(text::Role role, std::vector<text::ContentPart> content) {
  text::Message message;
  message.role = role;
  message.content = std::move(content);
  return message;
}

void check_images_allowed(const Fields& part, const text::ChatJsonOptions& options) {
  if (!options.allow_images)
    throw Error(ErrorCode::kUnsupported, part.name("type") + ": images are not supported");
}

text::ToolDefinition flat_function_tool(const Fields& tool, std::string_view parameters_key,
                                        size_t tool_idx) {
  json::Value function = json::Value::object();
  const std::pair<std::string_view, std::string_view> members[] = {{"name", "name"},
                                                                   {"description", "description"},
                                                                   {parameters_key, "parameters"},
                                                                   {"strict", "strict"}};
  for (const auto& [from, to] : members)
    if (const json::Value* value = tool.find(from)) function.set(std::string(to), *value);
  return text::tool_from_json(json::Value::object({{"type", json::Value::string("function")},
                                                   {"function", std::move(function)}}),
                              tool_idx);
}

}  // namespace onecard::server
