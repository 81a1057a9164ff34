#include "text/output_parser.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "text/call_arguments.h"
#include "text/chat_tokens.h"
#include "text/output_tags.h"
#include "text/stop_matcher.h"
#include "text/utf8.h"

namespace onecard::text {
namespace {

constexpr size_t kNowhere = std::numeric_limits<size_t>::max();

// Takes the literal text of the end token out of the output, and hands on whole code points only.
class InputFilter {
 public:
  void push(std::string_view text, std::string& out) {
    if (is_plain(text)) {
      out += text;
      return;
    }
    std::string input = std::exchange(held_, {});
    input += text;
    std::string_view rest = input;
    rest.remove_suffix(incomplete_suffix(rest));
    while (!rest.empty()) {
      const size_t less_than = std::min(rest.find('<'), rest.size());
      out += rest.substr(0, less_than);
      rest.remove_prefix(less_than);
      if (rest.starts_with(kEos)) {
        rest.remove_prefix(kEos.size());
      } else if (kEos.starts_with(rest)) {
        break;
      } else {
        out += '<';
        rest.remove_prefix(1);
      }
    }
    held_ = input.substr(size_t(rest.data() - input.data()));
  }

  /// Nothing of the text has to be looked at more closely.
  bool is_plain(std::string_view text) const {
    return held_.empty() && text.find('<') == text.npos && incomplete_suffix(text) == 0;
  }

  void finish(std::string& out) { out += std::exchange(held_, {}); }

 private:
  static size_t incomplete_suffix(std::string_view text) {
    for (size_t n = 1; n <= 3 && n <= text.size(); ++n) {
      const auto byte = static_cast<unsigned char>(text[text.size() - n]);
      if ((byte & 0xc0) == 0x80) continue;
      return is_incomplete_sequence(text.substr(text.size() - n)) ? n : 0;
    }
    return 0;
  }

  std::string held_;
};

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

// States: reasoning -> content -> block -> invoke -> value, as the prompt and the tags lead. One
// buffer holds the text from `position_` on; each state looks for the next '<' from which one of
// its tags matches, passes on what stands before it, and stops where a match needs more text.
//
// An invoke outside a block is a candidate: it is followed as if it were a call, with its events
// kept aside and its text kept in the buffer. Its closer turns the events into a call. If it turns
// out to be no call, its text is read again as text, in which no invoke counts up to the place
// where that was known; so each byte is read at most twice.
class OutputParser::Impl {
 public:
  explicit Impl(OutputParserOptions options) : options_(std::move(options)), stops_(options_.stop) {
    tools_active_ = !options_.tools.empty() && options_.tool_choice.kind != ToolChoice::Kind::kNone;
    at_start_ = !options_.continuation;
    any_reasoning_ = options_.continuation && options_.start == ParserStart::kReasoning;
    switch (options_.start) {
      case ParserStart::kReasoning:
        state_ = State::kReasoning;
        return;
      case ParserStart::kContent:
        state_ = State::kContent;
        return;
      case ParserStart::kCalls:
        state_ = State::kBlock;
        return;
    }
  }

  MessageEvents feed(std::string_view text, TextOrigin origin) {
    if (state_ == State::kDone) return {};
    if (state_ == State::kValue && !candidate_ && rest().empty() && filter_.is_plain(text)) {
      // Inside a value, as most pieces of a long argument are: the text is the value's, and that is
      // all that there is to it.
      num_bytes_scanned_ += text.size();
      add_value(text);
      return std::exchange(events_, {});
    }
    switch (origin) {
      case TextOrigin::kUnknown:
        filter_.push(text, buffer_);
        break;
      case TextOrigin::kMarker:
        markers_known_ = true;
        if (text == kEos) break;
        markers_.push_back(buffer_start_ + buffer_.size());
        buffer_ += text;
        break;
      case TextOrigin::kOrdinary:
        markers_known_ = true;
        buffer_ += text;
        break;
    }
    run();
    drop_consumed();
    return std::exchange(events_, {});
  }

  MessageEvents finish(OutputEnd end) {
    filter_.finish(buffer_);
    at_end_ = true;
    run();
    if (candidate_) {
      abandon_candidate(kNowhere);
      run();
    }
    const bool cut = end == OutputEnd::kTokenLimit;
    const bool in_block =
        state_ == State::kBlock || state_ == State::kInvoke || state_ == State::kValue;
    if (in_block && num_calls_ == 0) {
      give_back_block();
    } else if (in_block && !cut) {
      if (state_ == State::kValue) end_value();
      if (state_ == State::kInvoke) end_call();
    }
    flush_text();
    MessageEnd message_end;
    message_end.stop_string = stops_.met();
    if (!stops_.met().empty())
      message_end.reason = FinishReason::kStop;
    else if (cut && (in_block || state_ != State::kDone))
      message_end.reason = FinishReason::kLength;
    else
      message_end.reason = num_calls_ > 0 ? FinishReason::kToolCalls : FinishReason::kStop;
    state_ = State::kDone;
    events_.push_back(std::move(message_end));
    return std::exchange(events_, {});
  }

  bool wants_stop() const { return state_ == State::kDone; }
  bool past_reasoning() const {
    return (candidate_ ? candidate_->state : state_) != State::kReasoning;
  }
  size_t num_bytes_scanned() const { return num_bytes_scanned_; }

 private:
  enum class State { kReasoning, kContent, kBlock, kInvoke, kValue, kDone };

  // Places in the text are counted from its beginning; the buffer begins at `buffer_start_`.
  struct Candidate {
    size_t position = 0;  // of its '<'
    State state = State::kContent;
    MessageEvents events;
  };

  std::string_view rest() const { return rest_from(position_); }
  std::string_view rest_from(size_t position) const {
    return std::string_view(buffer_).substr(position - buffer_start_);
  }

  void drop_consumed() {
    const size_t keep_from = candidate_ ? candidate_->position : position_;
    const size_t num_consumed = keep_from - buffer_start_;
    // Less often than it grows, so that moving what stays costs a bounded number of moves a byte.
    if (num_consumed < buffer_.size() / 2) return;
    buffer_.erase(0, num_consumed);
    buffer_start_ = keep_from;
  }

  void run() {
    bool more = true;
    while (more && state_ != State::kDone) {
      switch (state_) {
        case State::kReasoning:
        case State::kContent:
          more = step_text();
          break;
        case State::kBlock:
          more = step_block();
          break;
        case State::kInvoke:
          more = step_invoke();
          break;
        case State::kValue:
          more = step_value();
          break;
        case State::kDone:
          break;
      }
    }
  }

  // The text up to the next '<', or all of it; moves behind it. `num_known` bytes belong to it in
  // any case.
  std::string_view take_plain(size_t num_known = 0) {
    const std::string_view text = rest().substr(0, rest().find('<', num_known));
    position_ += text.size();
    num_bytes_scanned_ += text.size();
    return text;
  }

  // `text` is a part of the buffer.
  TagMatch match(std::string_view text, TagSet kinds, Tag& tag) {
    num_bytes_scanned_ += std::min<size_t>(text.size(), 1);
    const TagMatch result = match_tag(text, unquoted(text, kinds), tag);
    if (result == TagMatch::kPartial) num_bytes_scanned_ += text.size();
    if (result == TagMatch::kFull) num_bytes_scanned_ += tag.num_bytes;
    return result;
  }

  // Of `kinds` those that `text` can be more than a quotation of.
  TagSet unquoted(std::string_view text, TagSet kinds) const {
    if (!markers_known_) return kinds;
    const size_t position = buffer_start_ + size_t(text.data() - buffer_.data());
    const size_t before_marker = text.starts_with("</") ? 2 : 1;
    TagSet possible;
    if (is_marker(position)) possible |= kThinkTags;
    if (text.size() <= before_marker || is_marker(position + before_marker))
      possible |= kMarkupTags;
    return kinds & possible;
  }

  bool is_marker(size_t position) const {
    return std::binary_search(markers_.begin(), markers_.end(), position);
  }

  // `scan_from_` is how far the text behind the tag at `position_` has been searched in vain.
  size_t scan_from() {
    if (scan_tag_ != position_) {
      scan_tag_ = position_;
      scan_from_ = 0;
    }
    return scan_from_;
  }

  TagMatch complete(const Tag& tag, OpenTag& open) {
    size_t quote_from = std::max(scan_from(), tag.num_bytes);
    const size_t from = quote_from;
    const TagMatch result = complete_tag(rest(), tag, quote_from, open);
    num_bytes_scanned_ += tag.num_bytes + open.name.size() - from + 20;  // 20: what ends the tag
    scan_from_ = quote_from;
    return result;
  }

  // ---- Reasoning and content ----

  bool step_text() {
    emit_text(take_plain());
    if (state_ == State::kDone || rest().empty()) return false;
    TagSet kinds = TagKind::kThinkClose;
    if (think_may_open()) kinds |= TagKind::kThinkOpen;
    if (tools_active_) {
      kinds |= TagKind::kBlockOpen;
      if (position_ >= text_until_) kinds |= TagKind::kInvokeOpen;
    }
    Tag tag;
    TagMatch found = match(rest(), kinds, tag);
    OpenTag open;
    if (found == TagMatch::kFull && tag.kind == TagKind::kInvokeOpen) {
      found = complete(tag, open);
      if (found != TagMatch::kNone && !may_be_declared(open)) found = TagMatch::kNone;
    }
    if (found == TagMatch::kPartial && !at_end_) return false;
    if (found != TagMatch::kFull) {
      emit_text(take_plain(1));
      return true;
    }
    switch (tag.kind) {
      case TagKind::kThinkOpen:
        if (state_ == State::kReasoning) think_open_seen_ = true;
        begin_text(State::kReasoning);
        break;
      case TagKind::kThinkClose:
        if (state_ == State::kReasoning)
          begin_text(State::kContent);
        else
          while (!held_.empty() && held_.back() == '\n') held_.pop_back();
        break;
      case TagKind::kBlockOpen:
        block_text_ = std::exchange(held_, {});
        block_text_ += rest().substr(0, tag.num_bytes);
        if (state_ == State::kReasoning) begin_text(State::kContent);
        state_ = State::kBlock;
        break;
      default:  // an invoke
        candidate_ = Candidate{position_, state_, {}};
        begin_call(open.name);
        position_ += open.num_bytes;
        return true;
    }
    position_ += tag.num_bytes;
    return true;
  }

  bool think_may_open() const {
    if (!at_start_) return false;
    if (state_ == State::kReasoning) return !think_open_seen_;
    return !any_reasoning_ && held_.find_first_not_of('\n') == held_.npos;
  }

  bool may_be_declared(const OpenTag& open) const {
    return std::any_of(
        options_.tools.begin(), options_.tools.end(), [&](const ToolDefinition& tool) {
          return open.name_complete ? tool.name == open.name : tool.name.starts_with(open.name);
        });
  }

  void begin_text(State state) {
    state_ = state;
    at_start_ = true;
    held_.clear();
  }

  // Reasoning drops the newlines at its start. Content holds the white space there until it is
  // known whether there is content at all. Both hold a run of newlines until it is known what
  // follows.
  void emit_text(std::string_view text) {
    if (at_start_) {
      const size_t begin = state_ == State::kReasoning ? text.find_first_not_of('\n')
                                                       : text.find_first_not_of(" \t\r\n");
      if (state_ != State::kReasoning) held_ += text.substr(0, begin);
      if (begin == text.npos) return;
      text.remove_prefix(begin);
      leave_start();
    }
    const size_t last = text.find_last_not_of('\n');
    if (last == text.npos) {
      held_ += text;
      return;
    }
    std::string certain = std::exchange(held_, std::string(text.substr(last + 1)));
    certain += text.substr(0, last + 1);
    emit_certain(certain);
  }

  void leave_start() {
    at_start_ = false;
    held_.erase(0, std::min(held_.find_first_not_of('\n'), held_.size()));
  }

  void emit_certain(std::string_view text) {
    if (text.empty()) return;
    if (state_ == State::kReasoning) {
      any_reasoning_ = true;
      emit(ReasoningDelta{std::string(text)});
      return;
    }
    std::string content;
    const bool met = stops_.push(text, content);
    if (met && options_.include_stop_string) content += stops_.met();
    if (!content.empty()) emit(ContentDelta{std::move(content)});
    if (met) {
      held_.clear();
      state_ = State::kDone;
    }
  }

  // The text has ended: what was held belongs to it.
  void flush_text() {
    if (at_start_) leave_start();
    emit_certain(std::exchange(held_, {}));
    flush_stops();
  }

  void flush_stops() {
    std::string content;
    stops_.flush(content);
    if (!content.empty()) emit(ContentDelta{std::move(content)});
  }

  // ---- The block of calls ----

  bool step_block() {
    keep_block_text(take_plain());
    if (rest().empty()) return false;
    Tag tag;
    TagMatch found = match(rest(), TagKind::kInvokeOpen | TagKind::kBlockClose, tag);
    OpenTag open;
    if (found == TagMatch::kFull && tag.kind == TagKind::kInvokeOpen) found = complete(tag, open);
    if (found == TagMatch::kPartial && !at_end_) return false;
    if (found != TagMatch::kFull) {
      keep_block_text(take_plain(1));
      return true;
    }
    if (tag.kind == TagKind::kInvokeOpen) {
      begin_call(open.name);
      position_ += open.num_bytes;
      return true;
    }
    keep_block_text(rest().substr(0, tag.num_bytes));
    position_ += tag.num_bytes;
    if (num_calls_ == 0) give_back_block();
    state_ = State::kDone;
    return false;
  }

  void keep_block_text(std::string_view text) {
    if (num_calls_ == 0) block_text_ += text;
  }

  // A block without a call is text after all.
  void give_back_block() {
    state_ = State::kContent;
    emit_text(std::exchange(block_text_, {}));
    if (state_ != State::kDone) flush_text();
  }

  void begin_call(std::string_view name) {
    const json::Value* schema = nullptr;
    for (const ToolDefinition& tool : options_.tools)
      if (tool.name == name) schema = &tool.parameters;
    arguments_.emplace(schema, options_.convert_by_schema);
    block_text_.clear();
    if (!candidate_) flush_stops();
    emit(CallStart{num_calls_++, std::string(name)});
    state_ = State::kInvoke;
  }

  void end_call() {
    std::string text;
    arguments_->end(text);
    emit_arguments(std::move(text));
    emit(CallEnd{num_calls_ - 1});
    state_ = State::kBlock;
    if (candidate_) accept_candidate();
    if (!options_.parallel_tool_calls) state_ = State::kDone;
  }

  void accept_candidate() {
    MessageEvents events = std::move(candidate_->events);
    candidate_.reset();
    held_.clear();
    if (at_start_) at_start_ = false;
    flush_stops();
    for (MessageEvent& event : events) emit(std::move(event));
  }

  void abandon_candidate(size_t known_at) {
    position_ = candidate_->position;
    state_ = candidate_->state;
    candidate_.reset();
    --num_calls_;
    text_until_ = known_at;
  }

  // ---- One call ----

  bool step_invoke() {
    arguments_->add_body(take_plain());
    if (rest().empty()) return false;
    TagSet kinds = TagKind::kParameterOpen | TagKind::kParameterClose;
    kinds |= TagKind::kInvokeOpen | TagKind::kInvokeClose;
    kinds |= TagKind::kBlockOpen | TagKind::kBlockClose;
    if (candidate_) kinds |= TagKind::kThinkClose;
    Tag tag;
    TagMatch found = match(rest(), kinds, tag);
    OpenTag open;
    if (found == TagMatch::kFull &&
        (tag.kind == TagKind::kParameterOpen || tag.kind == TagKind::kInvokeOpen))
      found = complete(tag, open);
    if (found == TagMatch::kPartial && !at_end_) return false;
    if (found != TagMatch::kFull) {
      if (!drop_cut_closer()) arguments_->add_body(take_plain(1));
      return true;
    }
    switch (tag.kind) {
      case TagKind::kParameterOpen: {
        std::string text;
        arguments_->begin_parameter(open.name, open.string_attribute, text);
        emit_arguments(std::move(text));
        position_ += open.num_bytes;
        state_ = State::kValue;
        return true;
      }
      case TagKind::kParameterClose:
        position_ += tag.num_bytes;
        return true;
      case TagKind::kInvokeClose:
        position_ += tag.num_bytes;
        end_call();
        return true;
      default:
        break;
    }
    // What stands here does not belong into an invoke. A candidate is none then; in a block it ends
    // the call and is looked at again, except a second opener of the block, which is skipped.
    if (candidate_)
      abandon_candidate(position_);
    else if (tag.kind == TagKind::kBlockOpen)
      position_ += tag.num_bytes;
    else
      end_call();
    return true;
  }

  // At the end of the output, a closing tag that was cut is no text.
  bool drop_cut_closer() {
    if (!at_end_ || !is_cut_closer(rest())) return false;
    if (markers_known_ && !is_marker(position_ + 2)) return false;
    position_ += rest().size();
    return true;
  }

  bool step_value() {
    add_value(take_plain());
    if (rest().empty()) return false;
    TagSet kinds = TagKind::kParameterOpen | TagKind::kParameterClose;
    kinds |= TagKind::kInvokeClose | TagKind::kBlockClose;
    Tag tag;
    TagMatch found = match(rest(), kinds, tag);
    if (found == TagMatch::kFull &&
        (tag.kind == TagKind::kInvokeClose || tag.kind == TagKind::kBlockClose))
      found = closes_value(tag);
    if (found == TagMatch::kPartial && !at_end_) return false;
    if (found != TagMatch::kFull) {
      if (!drop_cut_closer()) add_value(take_plain(1));
      return true;
    }
    end_value();
    if (tag.kind == TagKind::kParameterClose) position_ += tag.num_bytes;
    return true;
  }

  // The closer of an invoke closes an open value only in front of what may follow an invoke, and
  // the closer of the block only at the end; a value may speak of either.
  TagMatch closes_value(const Tag& tag) {
    size_t from = std::max(scan_from(), tag.num_bytes);
    const size_t begin = from;
    const std::string_view text = rest();
    while (from < text.size() && is_space(text[from])) ++from;
    num_bytes_scanned_ += from - begin;
    scan_from_ = from;
    if (from == text.size()) return at_end_ ? TagMatch::kFull : TagMatch::kPartial;
    if (tag.kind == TagKind::kBlockClose) return TagMatch::kNone;
    Tag next;
    const TagMatch found =
        match(text.substr(from), TagKind::kBlockClose | TagKind::kInvokeOpen, next);
    // A tag that the end has cut counts as the end.
    return found == TagMatch::kPartial && at_end_ ? TagMatch::kFull : found;
  }

  void add_value(std::string_view value) {
    if (value.empty()) return;
    std::string text;
    arguments_->add_value(value, text);
    emit_arguments(std::move(text));
  }

  void end_value() {
    std::string text;
    arguments_->end_parameter(text);
    emit_arguments(std::move(text));
    state_ = State::kInvoke;
  }

  // ---- Events ----

  void emit_arguments(std::string text) {
    if (!text.empty()) emit(ArgumentsDelta{num_calls_ - 1, std::move(text)});
  }

  template <typename Delta>
  static bool merge(MessageEvent& last, const MessageEvent& event) {
    auto* a = std::get_if<Delta>(&last);
    const auto* b = std::get_if<Delta>(&event);
    if (!a || !b) return false;
    a->text += b->text;
    return true;
  }

  void emit(MessageEvent event) {
    MessageEvents& events = candidate_ ? candidate_->events : events_;
    if (!events.empty() &&
        (merge<ReasoningDelta>(events.back(), event) || merge<ContentDelta>(events.back(), event) ||
         merge<ArgumentsDelta>(events.back(), event)))
      return;
    events.push_back(std::move(event));
  }

  const OutputParserOptions options_;
  bool tools_active_ = false;
  InputFilter filter_;
  StopMatcher stops_;
  MessageEvents events_;
  State state_ = State::kContent;
  bool at_end_ = false;

  std::string buffer_;
  size_t buffer_start_ = 0;
  size_t position_ = 0;
  bool markers_known_ = false;
  std::vector<size_t> markers_;  // where the control tokens begin, ascending
  size_t scan_tag_ = kNowhere;
  size_t scan_from_ = 0;
  size_t num_bytes_scanned_ = 0;

  std::string held_;  // white space whose meaning depends on what follows
  bool at_start_ = true;
  bool think_open_seen_ = false;
  bool any_reasoning_ = false;

  std::string block_text_;  // the block's text until its first call begins
  int num_calls_ = 0;
  std::optional<CallArguments> arguments_;
  std::optional<Candidate> candidate_;
  size_t text_until_ = 0;  // before this place an invoke outside a block is text
};

OutputParser::OutputParser(OutputParserOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

MessageEvents OutputParser::feed(std::string_view text, TextOrigin origin) {
  return impl_->feed(text, origin);
}
MessageEvents OutputParser::finish(OutputEnd end) { return impl_->finish(end); }
bool OutputParser::wants_stop() const { return impl_->wants_stop(); }
bool OutputParser::past_reasoning() const { return impl_->past_reasoning(); }
size_t OutputParser::num_bytes_scanned() const { return impl_->num_bytes_scanned(); }

}  // namespace onecard::text
