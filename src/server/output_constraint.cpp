#include "server/output_constraint.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "text/chat_tokens.h"

namespace onecard::server {
namespace {

using text::TokenId;

void allow_only(std::span<uint64_t> allowed, TokenId token) {
  std::fill(allowed.begin(), allowed.end(), 0);
  allowed[size_t(token) / 64] = uint64_t{1} << (size_t(token) % 64);
}

class OutputConstraint final : public engine::TokenConstraint {
 public:
  OutputConstraint(const ConstraintOptions& options, const text::Tokenizer& tokenizer)
      : in_reasoning_(options.starts_in_reasoning),
        budget_(options.reasoning_budget_tokens),
        forced_after_reasoning_(tokenizer.encode(options.forced_after_reasoning)) {
    if (in_reasoning_ && (budget_ || !forced_after_reasoning_.empty())) {
      const std::optional<TokenId> close = tokenizer.added_token(text::kThinkClose);
      require(close.has_value(), ErrorCode::kUnsupported,
              "thinking: the tokenizer has no token that ends reasoning");
      think_close_ = *close;
    }
    if (options.grammar != nullptr) grammar_.emplace(options.grammar, options.trie);
    for (const std::string& word : options.bad_words)
      for (const std::string& spelling : {word, " " + word}) {
        std::vector<TokenId> ids = tokenizer.encode(spelling, text::AddedTokens::kNone);
        longest_bad_word_ = std::max(longest_bad_word_, ids.size());
        bad_words_.push_back(std::move(ids));
      }
  }

  bool restrict_next(std::span<uint64_t> allowed) override {
    if (!forced_.empty()) {
      allow_only(allowed, forced_.front());
      return true;
    }
    if (in_reasoning_ && budget_ && num_reasoning_ >= *budget_) {
      allow_only(allowed, think_close_);
      return true;
    }
    bool restricted = forbid_bad_words(allowed);
    if (grammar_) restricted = grammar_->fill_mask(allowed) || restricted;
    return restricted;
  }

  void accept(int32_t token) override {
    if (!forced_.empty()) forced_.pop_front();
    if (grammar_ && !grammar_->accept_token(token))
      throw Error(ErrorCode::kUnsupported, "the output has left its grammar");
    if (in_reasoning_) {
      ++num_reasoning_;
      if (token == think_close_) {
        in_reasoning_ = false;
        forced_.assign(forced_after_reasoning_.begin(), forced_after_reasoning_.end());
      }
    }
    recent_.push_back(token);
    if (recent_.size() > longest_bad_word_) recent_.pop_front();
  }

 private:
  bool forbid_bad_words(std::span<uint64_t> allowed) const {
    bool restricted = false;
    for (const std::vector<TokenId>& word : bad_words_) {
      const size_t head = word.size() - 1;
      if (recent_.size() < head || !std::equal(word.begin(), word.begin() + ptrdiff_t(head),
                                               recent_.end() - ptrdiff_t(head)))
        continue;
      allowed[size_t(word.back()) / 64] &= ~(uint64_t{1} << (size_t(word.back()) % 64));
      restricted = true;
    }
    return restricted;
  }

  bool in_reasoning_;
  std::optional<int64_t> budget_;
  int64_t num_reasoning_ = 0;
  TokenId think_close_ = -1;
  std::vector<TokenId> forced_after_reasoning_;
  std::deque<TokenId> forced_;
  std::vector<std::vector<TokenId>> bad_words_;
  size_t longest_bad_word_ = 0;
  std::deque<TokenId> recent_;
  std::optional<text::GrammarState> grammar_;
};

}  // namespace

std::unique_ptr<engine::TokenConstraint> make_constraint(const ConstraintOptions& options,
                                                         const text::Tokenizer& tokenizer) {
  const bool reasoning = options.starts_in_reasoning && (options.reasoning_budget_tokens ||
                                                         !options.forced_after_reasoning.empty());
  if (!reasoning && options.bad_words.empty() && options.grammar == nullptr) return nullptr;
  return std::make_unique<OutputConstraint>(options, tokenizer);
}

}  // namespace onecard::server
