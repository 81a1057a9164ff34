// Reads the members of one JSON object of a request. A member that is null counts as absent. Errors
// name the member with its path, say what was expected, and are kInvalidArgument.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace onecard::server {

class Fields {
 public:
  /// `object` has to outlive this; `path` is what errors show in front of the member's name.
  explicit Fields(const json::Value& object, std::string path = "");

  /// The member, or null when it is absent or null.
  const json::Value* find(std::string_view key) const;

  std::optional<bool> boolean(std::string_view key) const;
  std::optional<int64_t> integer(std::string_view key, int64_t low,
                                 int64_t high = std::numeric_limits<int64_t>::max()) const;
  /// At least `low`; of any size.
  std::optional<int64_t> limit(std::string_view key, int64_t low) const;
  std::optional<double> number(std::string_view key, double low, double high) const;
  std::optional<std::string> string(std::string_view key) const;
  /// A string, or an array of strings; empty when absent.
  std::vector<std::string> string_list(std::string_view key) const;
  /// An array of integers in [0, 2^31).
  std::optional<std::vector<int32_t>> token_ids(std::string_view key) const;
  const json::Value* object(std::string_view key) const;
  const json::Value* array(std::string_view key) const;

  /// "path.key".
  std::string name(std::string_view key) const;
  [[noreturn]] void refuse(std::string_view key, const std::string& what) const;

 private:
  const json::Value* object_;
  std::string path_;
};

}  // namespace onecard::server
