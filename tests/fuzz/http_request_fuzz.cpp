// The body of a chat request: any bytes either become a request whose numbers are in range, or an
// Error that an API can answer; what is accepted can be encoded or is refused the same way.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "server/api_error.h"
#include "server/openai/chat_request.h"
#include "server/openai/error_body.h"
#include "text/chat_encoder.h"

namespace {

void expect(bool condition) {
  if (!condition) std::abort();
}

void check(const onecard::server::openai::ChatRequest& request) {
  const auto& fields = request.generation;
  const auto& sampling = fields.sampling;
  expect(sampling.temperature >= 0 && sampling.temperature <= 2);
  expect(sampling.top_p > 0 && sampling.top_p <= 1);
  expect(sampling.top_k >= 0 && sampling.min_p >= 0 && sampling.min_p <= 1);
  expect(sampling.repetition_penalty > 0);
  expect(fields.n >= 1 && fields.n <= onecard::server::openai::kMaxChoices);
  expect(!fields.max_tokens || *fields.max_tokens >= 1);
  expect(fields.stop.size() <= onecard::server::openai::kMaxStopStrings);
  for (const std::string& stop : fields.stop) expect(!stop.empty());
  for (const auto& [token, bias] : sampling.logit_bias) expect(token >= 0 && bias <= 100);
  expect(!request.num_logprobs ||
         *request.num_logprobs <= onecard::server::openai::kMaxTopLogprobs);
  expect(!request.conversation.messages.empty());
  expect(request.conversation.effort >= 1 && request.conversation.effort <= 100);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  onecard::text::ChatJsonOptions options;
  options.lenient_history = size % 2 == 0;
  try {
    const auto request = onecard::server::openai::parse_chat_request(body, options);
    check(request);
    expect(!onecard::text::encode_chat(request.conversation).text.empty());
  } catch (const onecard::Error& error) {
    const auto api_error = onecard::server::ApiError::from(error);
    expect(api_error.status() == 400 || api_error.status() == 501);
    expect(!onecard::json::parse(onecard::server::openai::error_body(api_error)).is_null());
  }
  return 0;
}
