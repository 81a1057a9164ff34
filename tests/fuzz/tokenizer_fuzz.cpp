// text/tokenizer, detokenizer: any bytes come back; ids are those of a plain model of BPE; cutting
// at an added token changes nothing; a stream of ids decodes as the whole does.
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/detokenizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_file.h"

namespace {

using namespace std::string_view_literals;
using onecard::text::AddedTokens;
using onecard::text::Detokenizer;
using onecard::text::TokenId;
using onecard::text::Tokenizer;

// Merges by looking through all pairs each time.
class PlainBpe {
 public:
  explicit PlainBpe(std::string_view file) : file_(onecard::text::parse_tokenizer_file(file)) {
    for (size_t rank = 0; rank < file_.merges.size(); ++rank)
      ranks_[{file_.merges[rank].left, file_.merges[rank].right}] = rank;
  }

  std::vector<TokenId> encode(std::string_view text) const {
    std::vector<TokenId> ids;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = onecard::text::piece_end(text, begin);
      if (end <= begin || end > text.size()) std::abort();
      append_piece(text.substr(begin, end - begin), ids);
      begin = end;
    }
    return ids;
  }

 private:
  void append_piece(std::string_view piece, std::vector<TokenId>& ids) const {
    std::vector<TokenId> symbols;
    for (const char c : piece) symbols.push_back(file_.byte_ids[static_cast<unsigned char>(c)]);
    for (;;) {
      size_t best = file_.merges.size();
      size_t place = 0;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto found = ranks_.find({symbols[i], symbols[i + 1]});
        if (found == ranks_.end() || found->second >= best) continue;
        best = found->second;
        place = i;
      }
      if (best == file_.merges.size()) break;
      symbols[place] = file_.merges[best].merged;
      symbols.erase(symbols.begin() + place + 1);
    }
    ids.insert(ids.end(), symbols.begin(), symbols.end());
  }

  onecard::text::TokenizerFile file_;
  std::map<std::pair<TokenId, TokenId>, size_t> ranks_;
};

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

struct Subject {
  std::string file = read_file(ONECARD_SOURCE_DIR "/tests/golden/text/demo_tokenizer.json");
  Tokenizer tokenizer = Tokenizer::parse(file);
  PlainBpe plain{file};
};

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Subject subject;
  const Tokenizer& tokenizer = subject.tokenizer;
  if (size == 0 || size > 4096) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);

  for (const AddedTokens added : {AddedTokens::kAll, AddedTokens::kNotChat, AddedTokens::kNone}) {
    std::string bytes;
    for (const TokenId id : tokenizer.encode(text, added)) {
      check(added != AddedTokens::kNone || !tokenizer.is_added(id));
      check(added != AddedTokens::kNotChat || !tokenizer.is_chat_token(id));
      bytes += tokenizer.token_bytes(id);
    }
    check(bytes == text);
  }

  const std::vector<TokenId> ids = tokenizer.encode(text, AddedTokens::kNone);
  check(ids == subject.plain.encode(text));

  const std::string_view user = "<\uff5cUser\uff5c>"sv;
  const size_t cut = data[0] % size;
  std::vector<TokenId> joined = tokenizer.encode(text.substr(0, cut));
  joined.push_back(*tokenizer.added_token(user));
  for (const TokenId id : tokenizer.encode(text.substr(cut))) joined.push_back(id);
  std::string with_user(text);
  with_user.insert(cut, user);
  check(tokenizer.encode(with_user) == joined);

  Detokenizer detokenizer(tokenizer);
  std::string streamed;
  for (const TokenId id : ids) detokenizer.push(id, streamed);
  detokenizer.finish(streamed);
  onecard::text::Utf8Assembler assembler;
  std::string whole;
  assembler.push(text, whole);
  assembler.finish(whole);
  check(streamed == whole);
  return 0;
}
