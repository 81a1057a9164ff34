// Goldens in tests/golden/ that are JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace onecard::test {

/// tests/golden/<name>, for instance "model/quantised.json".
json::Value load_golden(const std::string& name);

// What a golden promises to have; each throws std::runtime_error where it has something else.
const json::Value& member(const json::Value& value, const std::string& key);
std::vector<int32_t> ids(const json::Value& value);
std::vector<float> row(const json::Value& value);
std::vector<std::vector<float>> rows(const json::Value& value);

}  // namespace onecard::test
