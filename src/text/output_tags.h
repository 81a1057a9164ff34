// The tags of the model's output: think tags, and the markup of tool calls in all spellings that
// models have been seen to write. Text arrives in pieces, so a tag may be known to be partial.
#pragma once

#include <cstddef>
#include <string_view>

namespace onecard::text {

enum class TagKind : unsigned {
  kThinkOpen = 1u << 0,
  kThinkClose = 1u << 1,
  kBlockOpen = 1u << 2,  // "calls" and its other names
  kBlockClose = 1u << 3,
  kInvokeOpen = 1u << 4,  // its literal part ends behind name="
  kInvokeClose = 1u << 5,
  kParameterOpen = 1u << 6,  // its literal part ends behind name="
  kParameterClose = 1u << 7,
};

/// Kinds that count at some place.
class TagSet {
 public:
  constexpr TagSet() = default;
  constexpr TagSet(TagKind kind) : bits_(static_cast<unsigned>(kind)) {}  // NOLINT: a set of one
  constexpr bool has(TagKind kind) const { return (bits_ & static_cast<unsigned>(kind)) != 0; }
  constexpr TagSet operator|(TagSet other) const { return TagSet(bits_ | other.bits_); }
  constexpr TagSet& operator|=(TagSet other) { return *this = *this | other; }
  constexpr TagSet operator&(TagSet other) const { return TagSet(bits_ & other.bits_); }

 private:
  constexpr explicit TagSet(unsigned bits) : bits_(bits) {}
  unsigned bits_ = 0;
};
constexpr TagSet operator|(TagKind a, TagKind b) { return TagSet(a) | TagSet(b); }

/// Those that are one control token.
constexpr TagSet kThinkTags = TagKind::kThinkOpen | TagKind::kThinkClose;
/// Those that hold the control token chat_tokens.h calls kDsml, behind their '<' or "</".
constexpr TagSet kMarkupTags = TagKind::kBlockOpen | TagKind::kBlockClose | TagKind::kInvokeOpen |
                               TagKind::kInvokeClose | TagKind::kParameterOpen |
                               TagKind::kParameterClose;

enum class TagMatch {
  kNone,     // no tag, whatever follows
  kPartial,  // a tag if the right text follows
  kFull,
};

struct Tag {
  TagKind kind = TagKind::kThinkOpen;
  size_t num_bytes = 0;  // of the tag, or of its literal part
};

/// Is there a tag of `kinds`, or the literal part of one, at the head of `text`?
TagMatch match_tag(std::string_view text, TagSet kinds, Tag& tag);

/// What stands behind the literal part of an invoke or parameter opener.
struct OpenTag {
  enum class StringAttribute { kAbsent, kTrue, kFalse };
  size_t num_bytes = 0;   // of the whole tag
  std::string_view name;  // while the match is partial: the part of the name that is there
  bool name_complete = false;
  StringAttribute string_attribute = StringAttribute::kAbsent;
};

/// Completes `tag`, whose literal part is at the head of `text`. The name's closing quote is looked
/// for from `quote_from` on, which moves forward when it is not there: pass the same variable when
/// more text has arrived.
TagMatch complete_tag(std::string_view text, const Tag& tag, size_t& quote_from, OpenTag& open);

/// `text` is a prefix of a closing tag of the markup, long enough to hold the marker itself.
bool is_cut_closer(std::string_view text);

}  // namespace onecard::text
