// The arguments of one call, from the parameters that the model wrote to the text of a JSON object,
// piece by piece.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

#include "base/json.h"
#include "text/output_tags.h"

namespace onecard::text {

/// Strings are written as they arrive. Held until it is certain what they are: values that are no
/// strings, values that the schema may convert, and a first parameter that may wrap all others.
class CallArguments {
 public:
  /// `schema` is the tool's parameters, or null when the tool is not declared; it outlives this.
  CallArguments(const json::Value* schema, bool convert_by_schema);

  // Each call appends what is certain to `out`.
  void begin_parameter(std::string_view name, OpenTag::StringAttribute attribute, std::string& out);
  void add_value(std::string_view text, std::string& out);
  void end_parameter(std::string& out);
  /// Text of the call outside its parameters: counts only when there are none.
  void add_body(std::string_view text);
  /// The call is complete.
  void end(std::string& out);

 private:
  enum class Mode { kStream, kHold, kMayWrap, kIgnore };
  struct Parameter {
    std::string name;
    OpenTag::StringAttribute attribute = OpenTag::StringAttribute::kAbsent;
    std::string text;  // of a value that is held
  };

  const json::Value* property(std::string_view name) const;
  bool converts(std::string_view name) const;
  void write_key(std::string_view name, std::string& out);
  void write_held(const Parameter& parameter, std::string& out);
  bool write_unwrapped(const Parameter& parameter, std::string& out) const;
  void settle_wrapper(std::string& out);

  const json::Value* properties_ = nullptr;
  bool convert_by_schema_ = true;
  std::unordered_set<std::string> names_;
  bool any_written_ = false;
  bool wrapper_pending_ = false;  // parameter_ is complete and may wrap all others
  Mode mode_ = Mode::kIgnore;
  Parameter parameter_;
  std::string body_;
};

}  // namespace onecard::text
