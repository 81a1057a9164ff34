#include "text/pre_tokenizer.h"

#include "text/char_classes.h"
#include "text/utf8.h"

namespace onecard::text {

const std::array<std::string_view, 3> kPreTokenizerPatterns = {
    R"(\p{N}{1,3})",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"
    R"(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

namespace {

// A character and where it ends. Past the end there is none: no class, no end.
struct Char {
  char32_t value = 0;
  uint8_t classes = 0;
  size_t end = 0;

  bool is(int any_of) const { return (classes & any_of) != 0; }
  bool is_newline() const { return value == '\r' || value == '\n'; }
  bool is_ascii_letter() const {
    return (value >= 'a' && value <= 'z') || (value >= 'A' && value <= 'Z');
  }
};

// The first two expressions leave three kinds of pieces: numbers, runs of CJK characters, and what
// is between. The third works inside the last two, and sees the end of its piece as the end of the
// text.
class Scanner {
 public:
  /// `in_cjk`: the piece is a run of CJK characters.
  Scanner(std::string_view text, bool in_cjk)
      : text_(text), classes_(char_classes().data()), in_cjk_(in_cjk) {}

  Char at(size_t begin) const {
    if (begin >= text_.size()) return {};
    const auto byte = static_cast<unsigned char>(text_[begin]);
    if (byte < 0x80) return {byte, classes_[byte], begin + 1};
    const CodePoint code_point = decode_code_point(text_.substr(begin));
    if (!code_point.valid) return {code_point.value, 0, begin + code_point.num_bytes};
    return {code_point.value, classes_[code_point.value], begin + code_point.num_bytes};
  }

  // As at(), but nothing beyond the piece.
  Char inside(size_t begin) const {
    const Char c = at(begin);
    return is_outside(c) ? Char{} : c;
  }

  bool ends_at(size_t begin) const { return begin >= text_.size() || is_outside(at(begin)); }

  // The end of the run of characters with any of these classes that begins at `begin`.
  size_t skip(size_t begin, int any_of) const {
    for (Char c = inside(begin); c.is(any_of); c = inside(begin)) begin = c.end;
    return begin;
  }

  size_t skip_newlines(size_t begin) const {
    for (Char c = inside(begin); c.is_newline(); c = inside(begin)) begin = c.end;
    return begin;
  }

 private:
  bool is_outside(const Char& c) const { return c.is(kNumber) || c.is(kCjk) != in_cjk_; }

  std::string_view text_;
  const uint8_t* classes_;
  bool in_cjk_;
};

// \s*[\r\n]+|\s+(?!\S)|\s+ on the white space run that begins at `begin` with `first`.
size_t white_space_end(const Scanner& scan, size_t begin, const Char& first) {
  size_t last_newline_end = begin;
  size_t last_begin = begin;
  size_t end = begin;
  for (Char c = first; c.is(kSpace); c = scan.inside(end)) {
    last_begin = end;
    end = c.end;
    if (c.is_newline()) last_newline_end = end;
  }
  if (last_newline_end > begin) return last_newline_end;
  if (last_begin == begin || scan.ends_at(end)) return end;
  return last_begin;  // the last one goes with what follows
}

// The end of the third expression's match at `begin`, or `begin` when it does not match there.
size_t match_end(const Scanner& scan, size_t begin, const Char& first) {
  constexpr int kWord = kLetter | kMark;
  constexpr int kSigns = kPunctuation | kSymbol;
  const Char second = scan.inside(first.end);
  if (first.is(kSigns)) {
    if (first.value < 0x80 && second.is_ascii_letter()) {
      size_t end = second.end;
      for (Char c = scan.inside(end); c.is_ascii_letter(); c = scan.inside(end)) end = c.end;
      return end;
    }
    return scan.skip_newlines(scan.skip(first.end, kSigns));
  }
  if (first.is(kWord)) return scan.skip(first.end, kWord);
  if (second.is(kWord) && !first.is_newline()) return scan.skip(second.end, kWord);
  if (first.value == ' ' && second.is(kSigns))
    return scan.skip_newlines(scan.skip(second.end, kSigns));
  if (first.is(kSpace)) return white_space_end(scan, begin, first);
  return begin;
}

}  // namespace

bool is_pre_tokenizer_pattern(std::string_view pattern, size_t pattern_idx) {
  const auto canonical = [](std::string_view spelled) {
    std::string result;
    for (size_t i = 0; i < spelled.size(); ++i) {
      const char next = i + 1 < spelled.size() ? spelled[i + 1] : '\0';
      if (spelled[i] != '\\') {
        result += spelled[i];
      } else if (next == 'r' || next == 'n' || next == '"') {
        result += next == 'r' ? '\r' : next == 'n' ? '\n' : '"';
        ++i;
      } else {
        result += spelled.substr(i, 2);
        ++i;
      }
    }
    return result;
  };
  return canonical(pattern) == canonical(kPreTokenizerPatterns[pattern_idx]);
}

size_t piece_end(std::string_view text, size_t begin) {
  const Char first = Scanner(text, false).at(begin);
  const Scanner scan(text, first.is(kCjk));
  if (first.is(kNumber)) {
    const Char second = scan.at(first.end);
    if (!second.is(kNumber)) return first.end;
    const Char third = scan.at(second.end);
    return third.is(kNumber) ? third.end : second.end;
  }
  size_t end = match_end(scan, begin, first);
  if (end > begin) return end;
  // A gap: everything up to where the expression matches again.
  end = first.end;
  while (!scan.ends_at(end)) {
    const Char c = scan.at(end);
    if (match_end(scan, end, c) > end) break;
    end = c.end;
  }
  return end;
}

}  // namespace onecard::text
