#include "text/grammar/grammar.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "text/chat_tokens.h"
#include "text/grammar/automaton.h"
#include "text/grammar/json_rules.h"
#include "text/grammar/schema_compiler.h"

namespace onecard::text {
namespace grammar {
namespace {

std::string open_tag(const std::string& text) { return std::string(kDsmlOpen) + " " + text; }
std::string close_tag(const std::string& text) {
  return std::string(kDsmlClose) + " " + text + ">";
}

// Every spelling by which a model may open a block by itself (the output parser knows them too).
std::vector<std::string> block_openers() {
  std::vector<std::string> openers;
  for (const char* space : {" ", ""})
    for (const char* name : {"calls", "tool_calls", "function_calls", "toolcalls"})
      openers.push_back(std::string(kDsmlOpen) + space + name + ">");
  return openers;
}

class RequestCompiler {
 public:
  explicit RequestCompiler(const GrammarRequest& request)
      : request_(request),
        active_(!request.tools.empty() && request.tool_choice.kind != ToolChoice::Kind::kNone),
        forced_(active_ && request.tool_choice.kind != ToolChoice::Kind::kAuto),
        builder_(request.limits.max_nodes),
        json_(builder_, request.limits.max_pattern_work) {}

  bool constrains() const {
    const bool strict = std::any_of(request_.tools.begin(), request_.tools.end(),
                                    [](const ToolDefinition& tool) { return tool.strict; });
    return formatted() || forced_ || (active_ && strict);
  }

  Automaton compile() {
    const StateId start = builder_.add_state();
    switch (request_.start) {
      case ParserStart::kCalls:
        builder_.add_jump(start, block());
        break;
      case ParserStart::kContent:
        builder_.add_jump(start, content());
        break;
      case ParserStart::kReasoning:
        builder_.add_jump(start, reasoning());
        break;
    }
    return builder_.build(start);
  }

 private:
  bool formatted() const { return request_.response_format.kind != ResponseFormat::Kind::kText; }

  // Free up to </think>; a block of calls may also begin inside reasoning.
  StateId reasoning() {
    if (!formatted() && !forced_) return free_until_block();
    std::vector<AutomatonBuilder::WordTarget> words = {{std::string(kThinkClose), content()}};
    if (active_) add_openers(words);
    const StateId start = builder_.add_state();
    for (const StateId state : builder_.add_text(start, any_byte(), words).ends)
      builder_.set_free(state);
    return start;
  }

  StateId content() {
    if (!formatted() && !forced_) return free_until_block();
    const StateId start = builder_.add_state();
    if (!forced_) {
      const StateId end = builder_.add_state();
      builder_.set_accepting(end);
      builder_.add_call(start, format_rule(), end);
    }
    if (active_)
      builder_.add_jump(
          builder_.add_literal(builder_.add_literal(start, "\n\n"), open_tag("calls>\n")), block());
    return start;
  }

  // Free, and complete everywhere, but for what follows the opener of a block.
  StateId free_until_block() {
    std::vector<AutomatonBuilder::WordTarget> words;
    add_openers(words);
    const StateId start = builder_.add_state();
    for (const StateId state : builder_.add_text(start, any_byte(), words).ends) {
      builder_.set_free(state);
      builder_.set_accepting(state);
    }
    return start;
  }

  static AutomatonBuilder::Machine any_byte() { return AutomatonBuilder::Machine::any_byte(); }

  void add_openers(std::vector<AutomatonBuilder::WordTarget>& words) {
    const StateId behind = builder_.add_state();
    builder_.add_literal(behind, "\n", block());
    for (const std::string& opener : block_openers()) words.push_back({opener, behind});
  }

  RuleId format_rule() {
    if (request_.response_format.kind == ResponseFormat::Kind::kJsonObject) return json_.object();
    return SchemaCompiler(request_.response_format.schema, "response_format.json_schema.schema",
                          request_.limits, builder_, json_)
        .compile();
  }

  // Behind the line of the block's opener: calls, one a line or more, and the closer.
  StateId block() {
    if (block_) return *block_;
    block_ = builder_.add_state();
    const StateId behind = builder_.add_state();
    const StateId end = builder_.add_state();
    builder_.set_accepting(end);
    const StateId invoke = builder_.add_literal(*block_, open_tag("invoke name=\""));
    for (size_t i = 0; i < request_.tools.size(); ++i) {
      const ToolDefinition& tool = request_.tools[i];
      if (request_.tool_choice.kind == ToolChoice::Kind::kNamed &&
          tool.name != request_.tool_choice.name)
        continue;
      const StateId parameters = builder_.add_literal(invoke, tool.name + "\">\n");
      const std::string where = "tools[" + std::to_string(i) + "].function.parameters";
      if (tool.strict)
        add_strict_parameters(parameters, tool.parameters, where, behind);
      else
        add_free_parameters(parameters, behind);
    }
    if (request_.parallel_tool_calls) builder_.add_literal(behind, "\n", *block_);
    builder_.add_literal(builder_.add_literal(behind, "\n"), close_tag("calls"), end);
    return *block_;
  }

  // The members of the schema in its order. Line breaks stand between parameters, so there are two
  // chains of states: before and behind the first that is written.
  void add_strict_parameters(StateId from, const json::Value& schema, const std::string& where,
                             StateId behind) {
    SchemaCompiler compiler(schema, where, request_.limits, builder_, json_);
    StateId none_yet = from;
    StateId some = builder_.add_state();
    for (const SchemaCompiler::Property& property : compiler.root_properties()) {
      const StateId next_none = builder_.add_state(), next_some = builder_.add_state();
      const StateId tag = builder_.add_state();
      builder_.add_jump(none_yet, tag);
      builder_.add_literal(some, "\n", tag);
      add_parameter(tag, property, compiler, next_some);
      if (!property.required) {
        builder_.add_jump(none_yet, next_none);
        builder_.add_jump(some, next_some);
      }
      none_yet = next_none;
      some = next_some;
    }
    const StateId last = builder_.add_state();
    builder_.add_jump(none_yet, last);
    builder_.add_jump(some, last);
    builder_.add_literal(builder_.add_literal(last, "\n"), close_tag("invoke"), behind);
  }

  void add_parameter(StateId from, const SchemaCompiler::Property& property,
                     SchemaCompiler& compiler, StateId behind) {
    // Names and values are never escaped in the markup.
    if (property.name.find('"') != property.name.npos)
      throw Error(ErrorCode::kUnsupported, property.where + ": the name holds a quotation mark");
    const SchemaCompiler::Parts parts = compiler.split(property);
    for (const std::string& literal : parts.literals)
      if (literal.find(kDsml) != literal.npos)
        throw Error(ErrorCode::kUnsupported, property.where + ": a value holds tool markup");
    const StateId attribute =
        builder_.add_literal(from, open_tag("parameter name=\"") + property.name + "\" string=\"");
    if (!parts.strings.empty() || !parts.literals.empty()) {
      const StateId value = builder_.add_literal(attribute, "true\">");
      const StateId closer = builder_.add_state();
      builder_.add_literal(closer, close_tag("parameter"), behind);
      builder_.add_literals(value, parts.literals, closer);
      for (const StringLimits& limits : parts.strings) {
        if (limits == StringLimits())
          add_verbatim(value, behind);
        else
          builder_.add_call(value, json_.strings().rule(limits, Writing::kVerbatim, property.where),
                            behind);
      }
    }
    if (!parts.others.empty()) {
      const StateId value = builder_.add_literal(attribute, "false\">");
      const StateId closer = builder_.add_state();
      for (const RuleId rule : parts.others) builder_.add_call(value, rule, closer);
      builder_.add_literal(closer, close_tag("parameter"), behind);
    }
  }

  void add_free_parameters(StateId from, StateId behind) {
    const StateId tag = builder_.add_state();
    builder_.add_jump(from, tag);
    const StateId name = builder_.add_literal(tag, open_tag("parameter name=\""));
    const StateId quote = builder_.add_state(), some = builder_.add_state();
    for (const StateId state :
         builder_.add_text(name, AutomatonBuilder::Machine::utf8("\"<", 0x20), {}).ends)
      builder_.add_edge(state, '"', '"', quote);
    const StateId attribute = builder_.add_literal(quote, " string=\"");
    add_verbatim(builder_.add_literal(attribute, "true\">"), some);
    const StateId json =
        builder_.add_called(builder_.add_literal(attribute, "false\">"), json_.value());
    builder_.add_literal(json, close_tag("parameter"), some);
    builder_.add_literal(some, "\n", tag);
    const StateId last = builder_.add_state();
    builder_.add_jump(from, last);
    builder_.add_jump(some, last);
    builder_.add_literal(builder_.add_literal(last, "\n"), close_tag("invoke"), behind);
  }

  // A string as it is, and its closing tag. The marker behind '<' or "</" belongs to tags alone, so
  // that no text can be taken for one.
  void add_verbatim(StateId from, StateId behind) {
    const StateId marker = builder_.add_state();
    builder_.add_literal(marker, " parameter>", behind);
    builder_.add_text(from, AutomatonBuilder::Machine::utf8("", 0x00),
                      {{std::string(kDsmlClose), marker},
                       {std::string(kDsmlOpen), kFinalState},
                       {std::string(kEos), kFinalState}});
  }

  const GrammarRequest& request_;
  const bool active_;
  const bool forced_;
  AutomatonBuilder builder_;
  JsonRules json_;
  std::optional<StateId> block_;
};

}  // namespace
}  // namespace grammar

std::shared_ptr<const Grammar> Grammar::compile(const GrammarRequest& request) {
  grammar::RequestCompiler compiler(request);
  if (!compiler.constrains()) return nullptr;
  return std::make_shared<const Grammar>(compiler.compile());
}

Grammar::Grammar(grammar::Automaton automaton)
    : automaton_(std::make_unique<const grammar::Automaton>(std::move(automaton))) {}
Grammar::~Grammar() = default;

}  // namespace onecard::text
