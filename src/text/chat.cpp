#include "text/chat.h"

#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace onecard::text {

std::optional<Effort> effort_from_json(const json::Value& value, const EffortNames& names,
                                       const std::string& parameter) {
  const auto refuse = [&]() -> Error {
    return {ErrorCode::kInvalidArgument,
            parameter +
                ": has to be a whole number from 1 to 100 or one of none, minimal, low, medium, "
                "high, xhigh, max, ultra"};
  };
  if (value.is_null()) return std::nullopt;
  if (value.is_number()) {
    const std::optional<int64_t> number = value.as_int64();
    if (!number || *number < 1 || *number > 100) throw refuse();
    return Effort{false, static_cast<int>(*number)};
  }
  if (!value.is_string()) throw refuse();
  const std::string& name = value.as_string();
  if (name == "none") return Effort{true, 0};
  const std::array<std::pair<std::string_view, int>, 7> known = {{{"minimal", names.low},
                                                                  {"low", names.low},
                                                                  {"medium", names.high},
                                                                  {"high", names.high},
                                                                  {"xhigh", names.high},
                                                                  {"max", names.max},
                                                                  {"ultra", names.max}}};
  for (const auto& [known_name, number] : known)
    if (name == known_name) return Effort{false, number};
  throw refuse();
}

void resolve_thinking(const ThinkingRequest& request, const ThinkingDefaults& defaults,
                      Conversation& conversation) {
  const std::optional<Effort>& effort = request.effort ? request.effort : request.template_effort;
  if (request.thinking)
    conversation.thinking = *request.thinking;
  else if (effort && effort->off)
    conversation.thinking = false;
  else
    conversation.thinking = request.template_thinking.value_or(defaults.thinking);
  conversation.effort = effort && !effort->off ? effort->value : defaults.effort;
}

}  // namespace onecard::text
