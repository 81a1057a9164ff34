#include "text/output_tags.h"

#include <string>
#include <vector>

#include "text/chat_tokens.h"

namespace onecard::text {
namespace {

struct Literal {
  TagKind kind;
  std::string text;
};

std::vector<Literal> all_literals() {
  std::vector<Literal> literals = {{TagKind::kThinkOpen, std::string(kThinkOpen)},
                                   {TagKind::kThinkClose, std::string(kThinkClose)}};
  for (const char* space : {" ", ""}) {
    const std::string open = std::string(kDsmlOpen) + space;
    const std::string close = std::string(kDsmlClose) + space;
    for (const char* name : {"calls", "tool_calls", "function_calls", "toolcalls"}) {
      literals.push_back({TagKind::kBlockOpen, open + name + ">"});
      literals.push_back({TagKind::kBlockClose, close + name + ">"});
    }
    literals.push_back({TagKind::kInvokeOpen, open + "invoke name=\""});
    literals.push_back({TagKind::kInvokeClose, close + "invoke>"});
    literals.push_back({TagKind::kParameterOpen, open + "parameter name=\""});
    literals.push_back({TagKind::kParameterClose, close + "parameter>"});
  }
  return literals;
}

}  // namespace

TagMatch match_tag(std::string_view text, TagSet kinds, Tag& tag) {
  static const std::vector<Literal> literals = all_literals();
  // The bytes that may follow the '<' of a tag; most text is refused here.
  static const std::string second_bytes = {kThinkOpen[1], kThinkClose[1], kDsmlOpen[1]};
  if (text.size() > 1 && second_bytes.find(text[1]) == second_bytes.npos) return TagMatch::kNone;
  TagMatch best = TagMatch::kNone;
  for (const Literal& literal : literals) {
    if (!kinds.has(literal.kind)) continue;
    if (text.starts_with(literal.text)) {  // no literal is a prefix of another one
      tag = {literal.kind, literal.text.size()};
      return TagMatch::kFull;
    }
    if (std::string_view(literal.text).starts_with(text)) best = TagMatch::kPartial;
  }
  return best;
}

TagMatch complete_tag(std::string_view text, const Tag& tag, size_t& quote_from, OpenTag& open) {
  if (quote_from < tag.num_bytes) quote_from = tag.num_bytes;
  const size_t quote = text.find('"', quote_from);
  open.name = text.substr(tag.num_bytes, quote == text.npos ? quote : quote - tag.num_bytes);
  open.name_complete = quote != text.npos;
  if (!open.name_complete) {
    quote_from = text.size();
    return TagMatch::kPartial;
  }
  struct Ending {
    std::string_view text;
    OpenTag::StringAttribute string_attribute;
  };
  static constexpr Ending kEndings[] = {
      {">", OpenTag::StringAttribute::kAbsent},
      {" string=\"true\">", OpenTag::StringAttribute::kTrue},
      {" string=\"false\">", OpenTag::StringAttribute::kFalse},
  };
  const std::string_view rest = text.substr(quote + 1);
  TagMatch best = TagMatch::kNone;
  for (const Ending& ending : kEndings) {
    if (tag.kind == TagKind::kInvokeOpen &&
        ending.string_attribute != OpenTag::StringAttribute::kAbsent)
      continue;
    if (rest.starts_with(ending.text)) {
      open.num_bytes = quote + 1 + ending.text.size();
      open.string_attribute = ending.string_attribute;
      return TagMatch::kFull;
    }
    if (ending.text.starts_with(rest)) best = TagMatch::kPartial;
  }
  return best;
}

bool is_cut_closer(std::string_view text) {
  if (!text.starts_with(kDsmlClose)) return false;
  Tag tag;
  return match_tag(text, TagKind::kBlockClose | TagKind::kInvokeClose | TagKind::kParameterClose,
                   tag) == TagMatch::kPartial;
}

}  // namespace onecard::text
