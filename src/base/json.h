// JSON values that keep what the text said: members in source order, numbers as their lexemes
// (integers of any size survive, 100000.0 stays a float). The parser is for untrusted bytes: it
// bounds depth and refuses invalid UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace onecard::json {

enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

class Value;
using Member = std::pair<std::string, Value>;

class Value {
 public:
  Value() = default;  // null
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);                 // finite; shortest text that reads back the same
  static Value number_lexeme(std::string lexeme);  // trusted to be a JSON number
  static Value string(std::string value);
  static Value array(std::vector<Value> items = {});
  static Value object(std::vector<Member> members = {});

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_number() const { return kind_ == Kind::kNumber; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }
  /// A number written without '.', 'e' or 'E'.
  bool is_integer() const;

  /// The accessors below throw kInvalidArgument when the value is of another kind.
  bool as_bool() const;
  const std::string& as_string() const;
  /// The number as it was written.
  const std::string& lexeme() const;
  /// Nothing when the number is not an integer that fits (1.0 and 1e3 are not integers here).
  std::optional<int64_t> as_int64() const;
  /// The nearest double.
  double as_double() const;
  const std::vector<Value>& items() const;
  std::vector<Value>& items();
  const std::vector<Member>& members() const;
  std::vector<Member>& members();

  /// The member's value, or null when this is no object or has no such member.
  const Value* find(std::string_view key) const;
  /// Adds the member, or replaces the value of the one with this key.
  void set(std::string_view key, Value value);

 private:
  Kind kind_ = Kind::kNull;
  bool bool_ = false;
  std::string text_;  // a string's bytes, a number's lexeme
  std::vector<Value> items_;
  std::vector<Member> members_;
};

enum class DuplicateKeys {
  kLastValueFirstPlace,  // as CPython's json does
  kReject,
};

struct ParseOptions {
  int max_depth = 128;  // arrays and objects inside each other
  DuplicateKeys duplicate_keys = DuplicateKeys::kLastValueFirstPlace;
};

/// The one JSON value that `text` holds. A number beyond double's range (1e999) is refused;
/// integers below it keep all their digits. Throws kInvalidArgument "json: byte N: what is wrong".
Value parse(std::string_view text, const ParseOptions& options = {});

/// Compact JSON: no spaces, members in order, number lexemes as they were, non-ASCII kept, controls
/// escaped.
std::string dump(const Value& value);

/// Appends `text` as a JSON string with its quotes to `out`; escapes as dump() does.
void append_quoted(std::string& out, std::string_view text);

/// `text` as a JSON string with its quotes; what messages show untrusted names with.
std::string quoted(std::string_view text);

}  // namespace onecard::json
