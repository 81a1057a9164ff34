// Constrained decoding: which tokens may come next so that the output follows a grammar. A Grammar
// is compiled once from a request, immutable and shared; a GrammarState belongs to one sequence and
// is copied to speculate. Nothing here samples.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/chat.h"
#include "text/grammar/token_trie.h"

namespace onecard::text {

/// Bounds on what an untrusted schema may cost.
struct GrammarLimits {
  size_t max_nodes = 20'000;          // of the compiled grammar
  size_t max_schema_bytes = 262'144;  // of all schemas of a request, written compactly
  int max_schema_depth = 32;
  int max_json_depth = 64;  // of what is generated where the schema leaves the depth open
};

/// When the constraint sets in.
enum class GrammarStart {
  kNow,         // with the first token
  kAfterThink,  // after </think>; everything before it is free
};

struct GrammarOptions {
  GrammarStart start = GrammarStart::kNow;
  GrammarLimits limits;
};

class Grammar {
 public:
  struct Tables;

  /// Any JSON object.
  static std::shared_ptr<const Grammar> json_object(const GrammarOptions& options);

  /// An instance of the schema. Throws kUnsupported naming the keyword and its place when the
  /// schema needs what is not implemented, kInvalidArgument when it is no valid schema, and
  /// kResourceExhausted when it exceeds the limits.
  static std::shared_ptr<const Grammar> json_schema(const json::Value& schema,
                                                    const GrammarOptions& options);

  /// A block of calls in the model's markup. `tool_choice` kAuto leaves the text free until the
  /// model opens a block by itself; kRequired and kNamed force one. The arguments of tools with
  /// `strict` follow their schemas, those of others are free. With `opener_in_prompt` the text
  /// begins behind the block's opener.
  static std::shared_ptr<const Grammar> tool_calls(std::span<const ToolDefinition> tools,
                                                   const ToolChoice& tool_choice,
                                                   bool parallel_tool_calls, bool opener_in_prompt,
                                                   const GrammarOptions& options);

  explicit Grammar(std::unique_ptr<const Tables> tables);
  ~Grammar();
  const Tables& tables() const { return *tables_; }

 private:
  std::unique_ptr<const Tables> tables_;
};

class GrammarState {
 public:
  explicit GrammarState(std::shared_ptr<const Grammar> grammar);

  /// Follows `bytes`. False when they leave the grammar; the state is then unchanged.
  bool accept(std::string_view bytes);
  /// Follows a token: an id of `trie.end_ids()` is accepted where is_complete() and ends the text.
  bool accept(const TokenTrie& trie, int32_t token_id);

  /// Clears the bits of tokens that may not come next and keeps the others; bit `id % 64` of word
  /// `id / 64`. `allowed` has trie.mask_words() words. Returns false when it clears nothing because
  /// the text is free here.
  bool fill_mask(const TokenTrie& trie, std::span<uint64_t> allowed) const;

  /// The text so far is a whole sentence of the grammar: it may end here.
  bool is_complete() const;
  /// Everything may come next: the constraint has not set in.
  bool is_free() const;

 private:
  std::shared_ptr<const Grammar> grammar_;
};

}  // namespace onecard::text
