#include "base/json.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"

namespace onecard::json {
namespace {

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kNumber:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kArray:
      return "an array";
    case Kind::kObject:
      return "an object";
  }
  return "?";
}

[[noreturn]] void wrong_kind(Kind expected, Kind found) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string("json: expected ") + kind_name(expected) + ", found " + kind_name(found));
}

// Objects with more members than this find duplicates through a hash table; smaller ones by
// looking.
constexpr size_t kLinearMembers = 16;

// nlohmann's SAX events, kept as a tree of our values. Numbers arrive with their text.
class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit TreeBuilder(const ParseOptions& options) : options_(options) {}

  Value take() { return std::move(root_); }
  const std::string& error() const { return error_; }

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  // The lexer does not hand over an integer's text, but it is canonical: no leading zeros or plus.
  // "-0" is the exception, and becomes 0 as CPython's int does.
  bool number_integer(number_integer_t value) override { return add(Value::integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    return add(Value::number_lexeme(std::to_string(value)));
  }
  // Also integers beyond 64 bits come here, with their text.
  bool number_float(number_float_t, const string_t& text) override {
    return add(Value::number_lexeme(text));
  }
  bool string(string_t& text) override { return add(Value::string(std::move(text))); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Value::object()); }
  bool key(string_t& name) override {
    open_.back().key = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Value::array()); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& ex) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ..." -> the
    // part after the place
    std::string what = ex.what();
    if (const size_t colon = what.find(": "); colon != std::string::npos) what.erase(0, colon + 2);
    // Bytes of the input that are quoted in it may be anything.
    for (char& c : what)
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
    if (what.size() > 200) what.resize(200);
    error_ = "byte " + std::to_string(position) + ": " + what;
    return false;
  }

 private:
  struct Frame {
    Value value;
    std::string key;  // of the member that comes next
    std::unordered_map<std::string, size_t> places;
  };

  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Frame& frame = open_.back();
    if (frame.value.is_array()) {
      frame.value.items().push_back(std::move(value));
      return true;
    }
    return add_member(frame, std::move(value));
  }

  bool add_member(Frame& frame, Value value) {
    std::vector<Member>& members = frame.value.members();
    std::optional<size_t> place;
    if (members.size() <= kLinearMembers) {
      for (size_t i = 0; i < members.size() && !place; ++i)
        if (members[i].first == frame.key) place = i;
    } else {
      if (frame.places.empty())
        for (size_t i = 0; i < members.size(); ++i) frame.places.emplace(members[i].first, i);
      if (const auto found = frame.places.find(frame.key); found != frame.places.end())
        place = found->second;
      else
        frame.places.emplace(frame.key, members.size());
    }
    if (!place) {
      members.emplace_back(std::move(frame.key), std::move(value));
      return true;
    }
    if (options_.duplicate_keys == DuplicateKeys::kReject) {
      error_ = "the key \"" + frame.key + "\" appears twice";
      return false;
    }
    members[*place].second = std::move(value);
    return true;
  }

  bool open(Value value) {
    if (open_.size() >= static_cast<size_t>(options_.max_depth)) {
      error_ = "nested deeper than " + std::to_string(options_.max_depth) + " levels";
      return false;
    }
    open_.push_back({std::move(value), {}, {}});
    return true;
  }

  bool close() {
    Value value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  const ParseOptions& options_;
  std::vector<Frame> open_;
  Value root_;
  std::string error_;
};

void append(std::string& out, const Value& value) {
  switch (value.kind()) {
    case Kind::kNull:
      out += "null";
      return;
    case Kind::kBool:
      out += value.as_bool() ? "true" : "false";
      return;
    case Kind::kNumber:
      out += value.lexeme();
      return;
    case Kind::kString:
      append_quoted(out, value.as_string());
      return;
    case Kind::kArray: {
      out += '[';
      bool first = true;
      for (const Value& item : value.items()) {
        if (!first) out += ',';
        first = false;
        append(out, item);
      }
      out += ']';
      return;
    }
    case Kind::kObject: {
      out += '{';
      bool first = true;
      for (const Member& member : value.members()) {
        if (!first) out += ',';
        first = false;
        append_quoted(out, member.first);
        out += ':';
        append(out, member.second);
      }
      out += '}';
      return;
    }
  }
}

}  // namespace

Value Value::boolean(bool value) {
  Value result;
  result.kind_ = Kind::kBool;
  result.bool_ = value;
  return result;
}

Value Value::integer(int64_t value) { return number_lexeme(std::to_string(value)); }

Value Value::real(double value) {
  require(std::isfinite(value), ErrorCode::kInvalidArgument, "json: a number has to be finite");
  char text[40];
  const auto end = std::to_chars(text, text + sizeof(text), value);
  std::string lexeme(text, end.ptr);
  if (lexeme.find_first_of(".e") == std::string::npos) lexeme += ".0";
  return number_lexeme(std::move(lexeme));
}

Value Value::number_lexeme(std::string lexeme) {
  Value result;
  result.kind_ = Kind::kNumber;
  result.text_ = std::move(lexeme);
  return result;
}

Value Value::string(std::string value) {
  Value result;
  result.kind_ = Kind::kString;
  result.text_ = std::move(value);
  return result;
}

Value Value::array(std::vector<Value> items) {
  Value result;
  result.kind_ = Kind::kArray;
  result.items_ = std::move(items);
  return result;
}

Value Value::object(std::vector<Member> members) {
  Value result;
  result.kind_ = Kind::kObject;
  result.members_ = std::move(members);
  return result;
}

bool Value::is_integer() const {
  return is_number() && text_.find_first_of(".eE") == std::string::npos;
}

bool Value::as_bool() const {
  if (!is_bool()) wrong_kind(Kind::kBool, kind_);
  return bool_;
}

const std::string& Value::as_string() const {
  if (!is_string()) wrong_kind(Kind::kString, kind_);
  return text_;
}

const std::string& Value::lexeme() const {
  if (!is_number()) wrong_kind(Kind::kNumber, kind_);
  return text_;
}

std::optional<int64_t> Value::as_int64() const {
  int64_t value = 0;
  const char* end = lexeme().data() + lexeme().size();
  const auto result = std::from_chars(lexeme().data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

double Value::as_double() const {
  double value = 0;
  const char* end = lexeme().data() + lexeme().size();
  std::from_chars(lexeme().data(), end, value);
  // Too small for a double: from_chars leaves 0, which is the nearest. Too large does not pass the
  // parser.
  return value;
}

const std::vector<Value>& Value::items() const {
  if (!is_array()) wrong_kind(Kind::kArray, kind_);
  return items_;
}

std::vector<Value>& Value::items() {
  if (!is_array()) wrong_kind(Kind::kArray, kind_);
  return items_;
}

const std::vector<Member>& Value::members() const {
  if (!is_object()) wrong_kind(Kind::kObject, kind_);
  return members_;
}

std::vector<Member>& Value::members() {
  if (!is_object()) wrong_kind(Kind::kObject, kind_);
  return members_;
}

const Value* Value::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const Member& member : members_)
    if (member.first == key) return &member.second;
  return nullptr;
}

void Value::set(std::string_view key, Value value) {
  for (Member& member : members())
    if (member.first == key) {
      member.second = std::move(value);
      return;
    }
  members_.emplace_back(std::string(key), std::move(value));
}

Value parse(std::string_view text, const ParseOptions& options) {
  TreeBuilder builder(options);
  // Strict: the whole text is one value. nlohmann refuses a byte order mark only inside, so refuse
  // it here.
  const bool bom = text.starts_with("\xef\xbb\xbf");
  if (bom || !nlohmann::json::sax_parse(text.begin(), text.end(), &builder))
    throw Error(ErrorCode::kInvalidArgument,
                "json: " + (bom ? "byte 1: begins with a byte order mark" : builder.error()));
  return builder.take();
}

std::string dump(const Value& value) {
  std::string out;
  append(out, value);
  return out;
}

void append_quoted(std::string& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  size_t begin = 0;  // of the run that needs no escape
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text, begin, i - begin);
    begin = i + 1;
    out += '\\';
    switch (byte) {
      case '"':
      case '\\':
        out += static_cast<char>(byte);
        break;
      case '\b':
        out += 'b';
        break;
      case '\f':
        out += 'f';
        break;
      case '\n':
        out += 'n';
        break;
      case '\r':
        out += 'r';
        break;
      case '\t':
        out += 't';
        break;
      default:
        out += "u00";
        out += kHex[byte >> 4];
        out += kHex[byte & 15];
    }
  }
  out.append(text, begin, text.size() - begin);
  out += '"';
}

std::string quoted(std::string_view text) {
  std::string out;
  append_quoted(out, text);
  return out;
}

}  // namespace onecard::json
