// Token counts of one answer, as every protocol reports them under its own names.
#pragma once

#include <cstdint>

namespace onecard::server {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt, taken from the prefix cache
  int64_t completion_tokens = 0;  // reasoning and markup included
  int64_t reasoning_tokens = 0;   // before </think>, which is not counted
};

}  // namespace onecard::server
