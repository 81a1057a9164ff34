#include "text/engram_map.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "text/utf8.h"

namespace onecard::text {
namespace {

const icu::Normalizer2& normalizer(const icu::Normalizer2* (*instance)(UErrorCode&)) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* result = instance(status);
  if (U_FAILURE(status))
    throw Error(ErrorCode::kUnsupported,
                std::string("engram map: ICU has no normaliser: ") + u_errorName(status));
  return *result;
}

icu::UnicodeString normalized(const icu::Normalizer2& form, const icu::UnicodeString& text) {
  UErrorCode status = U_ZERO_ERROR;
  icu::UnicodeString result = form.normalize(text, status);
  if (U_FAILURE(status))
    throw Error(ErrorCode::kDataCorrupt,
                std::string("engram map: a token cannot be normalised: ") + u_errorName(status));
  return result;
}

bool is_blank(UChar32 c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// NFKC, NFD, no marks, lower case, runs of blanks as one space, no white space at the ends unless
// the text is one space.
class Folder {
 public:
  std::string fold(std::string_view text) const {
    const icu::UnicodeString decomposed =
        normalized(nfd_, normalized(nfkc_, icu::UnicodeString::fromUTF8(
                                               {text.data(), static_cast<int32_t>(text.size())})));
    icu::UnicodeString folded;
    bool after_blank = false;
    for (int32_t i = 0; i < decomposed.length(); i = decomposed.moveIndex32(i, 1)) {
      const UChar32 c = decomposed.char32At(i);
      if (U_MASK(u_charType(c)) & U_GC_M_MASK) continue;
      // One code point at a time: what has a longer or contextual lower case is decomposed by now.
      if (!is_blank(c))
        folded.append(u_tolower(c));
      else if (!after_blank)
        folded.append(u' ');
      after_blank = is_blank(c);
    }
    if (folded != icu::UnicodeString(u' ')) strip(folded);
    std::string result;
    return folded.toUTF8String(result);
  }

 private:
  static void strip(icu::UnicodeString& text) {
    int32_t end = text.length();
    while (end > 0 && u_isUWhiteSpace(text.char32At(end - 1))) --end;
    int32_t begin = 0;
    while (begin < end && u_isUWhiteSpace(text.char32At(begin))) ++begin;
    text = icu::UnicodeString(text, begin, end - begin);
  }

  const icu::Normalizer2& nfkc_ = normalizer(icu::Normalizer2::getNFKCInstance);
  const icu::Normalizer2& nfd_ = normalizer(icu::Normalizer2::getNFDInstance);
};

std::string decode(std::string_view bytes) {
  std::string text;
  Utf8Assembler assembler;
  assembler.push(bytes, text);
  assembler.finish(text);
  return text;
}

}  // namespace

EngramMap build_engram_map(const Tokenizer& tokenizer) {
  const Folder folder;
  std::unordered_map<std::string, int32_t> ids_by_key;
  EngramMap map;
  map.compressed_ids.reserve(tokenizer.vocab_size());
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.token_text(id).empty())
      throw Error(ErrorCode::kUnsupported,
                  "engram map: the vocabulary does not use the id " + std::to_string(id));
    const std::string text = decode(tokenizer.token_bytes(id));
    std::string key;
    if (text.find("\ufffd") != std::string::npos) {
      key = tokenizer.token_text(id);  // part of a character: nothing to fold
    } else {
      key = folder.fold(text);
      if (key.empty()) key = text;
    }
    const auto next = static_cast<int32_t>(ids_by_key.size());
    map.compressed_ids.push_back(ids_by_key.try_emplace(std::move(key), next).first->second);
  }
  map.num_compressed_ids = static_cast<int>(ids_by_key.size());
  return map;
}

}  // namespace onecard::text
