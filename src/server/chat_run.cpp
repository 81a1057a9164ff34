#include "server/chat_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/output_constraint.h"
#include "text/chat_encoder.h"
#include "text/grammar/grammar.h"

namespace onecard::server {
namespace {

// What the answer has to keep to: a JSON format, or calls that follow strict schemas. Calls of
// other tools are the parser's business: it is tolerant where a grammar would not be.
std::shared_ptr<const text::Grammar> grammar_of(const openai::ChatRequest& request,
                                                const text::Prompt& prompt) {
  const text::Conversation& conversation = request.conversation;
  text::GrammarRequest wanted;
  wanted.start = prompt.output_start;
  wanted.response_format = conversation.response_format;
  wanted.parallel_tool_calls = request.parallel_tool_calls;
  if (conversation.tools_active() &&
      std::any_of(conversation.tools.begin(), conversation.tools.end(),
                  [](const text::ToolDefinition& tool) { return tool.strict; })) {
    wanted.tools = conversation.tools;
    wanted.tool_choice = conversation.tool_choice;
  }
  return text::Grammar::compile(wanted);
}

}  // namespace

ChatRun run_chat(Service& service, const openai::ChatRequest& request,
                 const std::string& request_id, const http::Wake& wake) {
  const openai::GenerationFields& fields = request.generation;
  const text::Prompt prompt = text::encode_chat(request.conversation);
  ChatRun run;
  run.prompt = text::encode_ids(prompt, service.tokenizer(), service.options().client_markup);
  const auto num_prompt_tokens = int64_t(run.prompt.size());
  service.check_length(num_prompt_tokens, "messages", fields.max_tokens);

  ConstraintOptions constraint;
  constraint.starts_in_reasoning = prompt.output_start == text::ParserStart::kReasoning;
  constraint.reasoning_budget_tokens = request.thinking_token_budget;
  constraint.forced_after_reasoning = prompt.forced_after_thinking;
  constraint.bad_words = fields.bad_words;
  constraint.grammar = grammar_of(request, prompt);
  constraint.trie = service.trie();

  GenerationOptions options;
  options.parser.emplace();
  options.parser->start = prompt.output_start;
  options.parser->continuation = prompt.continuation;
  options.parser->tools = request.conversation.tools;
  options.parser->tool_choice = request.conversation.tool_choice;
  options.parser->parallel_tool_calls = request.parallel_tool_calls;
  options.parser->stop = fields.stop;
  options.parser->include_stop_string = fields.include_stop_string;
  options.markers_are_tokens = !constraint.grammar;
  options.skip_special_tokens = fields.skip_special_tokens;
  options.keep_tokens = request.num_logprobs || fields.return_token_ids;

  service.metrics().observe_request(
      fields.n, fields.max_tokens.value_or(service.context_length() - num_prompt_tokens));
  std::vector<engine::SequenceRequest> sequences;
  for (int i = 0; i < fields.n; ++i) {
    engine::SequenceRequest sequence = service.sequence_request(fields, run.prompt, i);
    sequence.request_id = request_id;
    sequence.sampling.num_logprobs = request.num_logprobs;
    if (i == 0) sequence.prompt_logprobs = fields.prompt_logprobs;
    sequence.constraint = make_constraint(constraint, service.tokenizer());
    sequence.wake = wake;
    sequences.push_back(std::move(sequence));
  }
  for (engine::SequenceHandle& handle : service.submit(std::move(sequences))) {
    run.choices.push_back(
        {Generation(service.tokenizer(), service.metrics(), options), {}, {}, false});
    run.choices.back().generation.start(std::move(handle), num_prompt_tokens);
  }
  return run;
}

}  // namespace onecard::server
