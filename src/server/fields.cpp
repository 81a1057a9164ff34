#include "server/fields.h"

#include <utility>

#include "base/error.h"

namespace onecard::server {
namespace {

std::string plain(double value) {
  std::string text = std::to_string(value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

Fields::Fields(const json::Value& object, std::string path)
    : object_(&object), path_(std::move(path)) {
  if (!object.is_object())
    throw Error(ErrorCode::kInvalidArgument,
                (path_.empty() ? "body" : path_) + ": has to be a JSON object");
}

std::string Fields::name(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

void Fields::refuse(std::string_view key, const std::string& what) const {
  throw Error(ErrorCode::kInvalidArgument, name(key) + ": " + what);
}

const json::Value* Fields::find(std::string_view key) const {
  const json::Value* value = object_->find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<bool> Fields::boolean(std::string_view key) const {
  const json::Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) refuse(key, "has to be true or false");
  return value->as_bool();
}

std::optional<int64_t> Fields::integer(std::string_view key, int64_t low, int64_t high) const {
  const json::Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::string expected =
      high == std::numeric_limits<int64_t>::max()
          ? "has to be an integer of at least " + std::to_string(low)
          : "has to be an integer from " + std::to_string(low) + " to " + std::to_string(high);
  if (!value->is_number() || !value->is_integer()) refuse(key, expected);
  const std::optional<int64_t> number = value->as_int64();
  if (!number || *number < low || *number > high)
    refuse(key, expected + ", not " + value->lexeme().substr(0, 40));
  return number;
}

std::optional<int64_t> Fields::limit(std::string_view key, int64_t low) const {
  const json::Value* value = find(key);
  // Beyond 64 bits it is a limit that nothing reaches.
  if (value != nullptr && value->is_number() && value->is_integer() && !value->as_int64() &&
      value->lexeme()[0] != '-')
    return std::numeric_limits<int64_t>::max();
  return integer(key, low);
}

std::optional<double> Fields::number(std::string_view key, double low, double high) const {
  const json::Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::string expected = "has to be a number from " + plain(low) + " to " + plain(high);
  if (!value->is_number()) refuse(key, expected);
  const double number = value->as_double();
  if (!(number >= low && number <= high))
    refuse(key, expected + ", not " + value->lexeme().substr(0, 40));
  return number;
}

std::optional<std::string> Fields::string(std::string_view key) const {
  const json::Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(key, "has to be a string");
  return value->as_string();
}

std::vector<std::string> Fields::string_list(std::string_view key) const {
  const json::Value* value = find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->as_string()};
  if (!value->is_array()) refuse(key, "has to be a string or an array of strings");
  std::vector<std::string> list;
  for (const json::Value& item : value->items()) {
    if (!item.is_string())
      refuse(std::string(key) + "[" + std::to_string(list.size()) + "]", "has to be a string");
    list.push_back(item.as_string());
  }
  return list;
}

std::optional<std::vector<int32_t>> Fields::token_ids(std::string_view key) const {
  const json::Value* value = array(key);
  if (value == nullptr) return std::nullopt;
  std::vector<int32_t> ids;
  for (const json::Value& item : value->items()) {
    const std::optional<int64_t> id = item.is_number() ? item.as_int64() : std::nullopt;
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max())
      refuse(std::string(key) + "[" + std::to_string(ids.size()) + "]", "has to be a token id");
    ids.push_back(int32_t(*id));
  }
  return ids;
}

const json::Value* Fields::object(std::string_view key) const {
  const json::Value* value = find(key);
  if (value != nullptr && !value->is_object()) refuse(key, "has to be an object");
  return value;
}

const json::Value* Fields::array(std::string_view key) const {
  const json::Value* value = find(key);
  if (value != nullptr && !value->is_array()) refuse(key, "has to be an array");
  return value;
}

}  // namespace onecard::server
