// Identifiers that answers carry: random, so that they are unique without a common counter.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace onecard::server {

/// Makes an id that begins with `prefix`. Tests inject one that counts.
using MakeId = std::function<std::string(std::string_view prefix)>;

/// `prefix` and 24 random letters and digits (142 bits). Safe from any thread.
std::string random_id(std::string_view prefix);

}  // namespace onecard::server
