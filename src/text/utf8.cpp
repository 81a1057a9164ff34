#include "text/utf8.h"

#include <algorithm>

#include "base/error.h"

namespace onecard::text {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

// The well-formed sequences of Unicode 15, table 3-7: for a lead byte, how long the sequence is and
// which second bytes may follow. Every later byte is 80..BF.
struct Lead {
  int num_bytes = 0;  // 0: no sequence begins with this byte
  unsigned char second_low = 0x80;
  unsigned char second_high = 0xBF;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// How many bytes at the head of `bytes` are a prefix of the sequence that `lead` begins.
int num_matching(std::string_view bytes, const Lead& lead) {
  const int limit =
      std::min<int>(lead.num_bytes, static_cast<int>(std::min<size_t>(bytes.size(), 4)));
  int n = 1;
  while (n < limit) {
    const auto byte = static_cast<unsigned char>(bytes[n]);
    const bool fits =
        n == 1 ? byte >= lead.second_low && byte <= lead.second_high : byte >= 0x80 && byte <= 0xBF;
    if (!fits) break;
    ++n;
  }
  return n;
}

}  // namespace

CodePoint decode_code_point(std::string_view bytes) {
  ONECARD_ASSERT(!bytes.empty());
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (first < 0x80) return {first, 1, true};
  const Lead lead = lead_of(first);
  if (lead.num_bytes == 0) return {kReplacement, 1, false};
  const int n = num_matching(bytes, lead);
  if (n < lead.num_bytes) return {kReplacement, n, false};
  char32_t value = first & (0x7F >> lead.num_bytes);
  for (int i = 1; i < n; ++i) value = value << 6 | (static_cast<unsigned char>(bytes[i]) & 0x3F);
  return {value, n, true};
}

void append_code_point(std::string& out, char32_t code_point) {
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
    return;
  }
  const int num_bytes = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
  out += static_cast<char>((0xF00 >> num_bytes & 0xFF) | code_point >> (6 * (num_bytes - 1)));
  for (int i = num_bytes - 2; i >= 0; --i)
    out += static_cast<char>(0x80 | (code_point >> (6 * i) & 0x3F));
}

bool is_incomplete_sequence(std::string_view bytes) {
  if (bytes.empty()) return false;
  const Lead lead = lead_of(static_cast<unsigned char>(bytes[0]));
  if (bytes.size() >= static_cast<size_t>(lead.num_bytes)) return false;
  return num_matching(bytes, lead) == static_cast<int>(bytes.size());
}

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::move(held_);
    held_.clear();
    joined += bytes;
    bytes = joined;
  }
  size_t begin = 0;  // of the run of well-formed text that has not been copied yet
  size_t at = 0;
  while (at < bytes.size()) {
    const std::string_view rest = bytes.substr(at);
    const CodePoint code_point = decode_code_point(rest);
    if (code_point.valid) {
      at += code_point.num_bytes;
      continue;
    }
    out.append(bytes, begin, at - begin);
    if (is_incomplete_sequence(rest)) {
      held_ = rest;
      return;
    }
    append_code_point(out, kReplacement);
    at += code_point.num_bytes;
    begin = at;
  }
  out.append(bytes, begin, at - begin);
}

void Utf8Assembler::finish(std::string& out) {
  if (!held_.empty()) append_code_point(out, kReplacement);
  held_.clear();
}

}  // namespace onecard::text
