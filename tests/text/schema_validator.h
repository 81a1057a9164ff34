// A small validator and a generator of instances for the JSON schemas that grammars accept, written
// from the JSON Schema text alone: what the compiled grammar is held against.
#pragma once

#include <random>
#include <string>

#include "base/json.h"

namespace onecard::test {

/// Is `instance` valid under `schema`, whose references lead into `root`?
bool is_valid(const json::Value& instance, const json::Value& schema, const json::Value& root);

/// A random valid instance, its members in the schema's order. Ends for recursive schemas that
/// offer a way out, since the first branch of anyOf is taken below some depth.
json::Value random_instance(const json::Value& schema, const json::Value& root,
                            std::mt19937& random, int depth = 0);

/// A random schema: types, enums, anyOf, optional members, bounds.
json::Value random_schema(std::mt19937& random, int depth = 0);

}  // namespace onecard::test
