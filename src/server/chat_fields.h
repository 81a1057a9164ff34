// What the bodies of the chat protocols have in common: parts of messages, function tools.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/fields.h"
#include "text/chat.h"
#include "text/chat_json.h"

namespace onecard::server {

/// "list[idx]", for errors.
std::string at(std::string_view list, size_t idx);

/// Throws when the member is absent.
std::string required_string(const Fields& fields, std::string_view key);

text::Message message_of(text::Role role, std::vector<text::ContentPart> content = {});

inline text::ContentPart text_part(std::string text) {
  return {text::ContentPart::Kind::kText, std::move(text)};
}

/// Refuses by name (kUnsupported) when images are not allowed.
void check_images_allowed(const Fields& part, const text::ChatJsonOptions& options);

/// A tool whose members stand in `tool` itself instead of a member "function"; `parameters_key` is
/// where its schema is.
text::ToolDefinition flat_function_tool(const Fields& tool, std::string_view parameters_key,
                                        size_t tool_idx);

}  // namespace onecard::server
