#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <fstream>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "text/chat_tokens.h"
#include "text/pre_tokenizer.h"
#include "text/token_index.h"
#include "text/tokenizer_file.h"

namespace onecard::text {
namespace {

struct Merge {
  uint32_t rank = 0;
  TokenId merged = -1;
};

// Which pairs merge. Nearly every piece begins as single bytes, so pairs of those have a table of
// their own: the part of it that a text uses stays in the cache.
class MergeTable {
 public:
  explicit MergeTable(const TokenizerFile& file)
      : byte_pairs_(256 * 256),
        slots_(std::bit_ceil(2 * file.merges.size() + 2)),
        mask_(slots_.size() - 1) {
    std::unordered_map<TokenId, size_t> byte_of;  // every byte has an id of its own
    for (size_t byte = 0; byte < file.byte_ids.size(); ++byte) byte_of[file.byte_ids[byte]] = byte;
    const std::vector<MergeRule>& rules = file.merges;
    for (size_t rank = 0; rank < rules.size(); ++rank) {
      const Merge merge{static_cast<uint32_t>(rank), rules[rank].merged};
      const uint64_t key = key_of(rules[rank].left, rules[rank].right);
      size_t i = first_slot(key);
      while (slots_[i].merge.merged >= 0) i = (i + 1) & mask_;
      slots_[i] = {key, merge};
      const auto left = byte_of.find(rules[rank].left);
      const auto right = byte_of.find(rules[rank].right);
      if (left != byte_of.end() && right != byte_of.end())
        byte_pairs_[left->second << 8 | right->second] = merge;
    }
  }

  /// As find(), for the tokens of two single bytes.
  Merge find_bytes(unsigned char left, unsigned char right) const {
    return byte_pairs_[left << 8 | right];
  }

  /// `merged` is negative when the pair does not merge.
  Merge find(TokenId left, TokenId right) const {
    const uint64_t key = key_of(left, right);
    for (size_t i = first_slot(key);; i = (i + 1) & mask_)
      if (slots_[i].key == key || slots_[i].merge.merged < 0) return slots_[i].merge;
  }

 private:
  struct Slot {
    uint64_t key = ~uint64_t{0};
    Merge merge;
  };

  static uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t first_slot(uint64_t key) const {
    return (key * 0x9E3779B97F4A7C15u >> 32) & mask_;  // Fibonacci hashing
  }

  std::vector<Merge> byte_pairs_;
  std::vector<Slot> slots_;  // open addressing, linear probing, at most half full
  size_t mask_;
};

// The added tokens in order of their bytes: those that begin like the text at a place are a range,
// which every further byte narrows.
class AddedTokenTable {
 public:
  struct Match {
    TokenId id = -1;
    size_t begin = 0;
    size_t end = 0;
  };

  explicit AddedTokenTable(const std::vector<TokenEntry>& tokens) : tokens_(tokens) {
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (!tokens[id].is_added) continue;
      ids_.push_back(static_cast<TokenId>(id));
      begins_[static_cast<unsigned char>(tokens[id].bytes[0])] = true;
    }
    std::sort(ids_.begin(), ids_.end(),
              [&](TokenId a, TokenId b) { return tokens_[a].bytes < tokens_[b].bytes; });
  }

  /// The leftmost token at or after `begin` that `allowed(id, begin, end)` accepts, the longest if
  /// several begin there. `id` is negative when there is none.
  template <typename Allowed>
  Match find(std::string_view text, size_t begin, Allowed allowed) const {
    for (size_t at = begin; at < text.size(); ++at) {
      if (!begins_[static_cast<unsigned char>(text[at])]) continue;
      const Match match = longest_at(text, at, allowed);
      if (match.id >= 0) return match;
    }
    return {};
  }

  TokenId find_exact(std::string_view bytes) const {
    const auto found = std::lower_bound(
        ids_.begin(), ids_.end(), bytes,
        [&](TokenId id, std::string_view value) { return tokens_[id].bytes < value; });
    return found != ids_.end() && tokens_[*found].bytes == bytes ? *found : -1;
  }

 private:
  template <typename Allowed>
  Match longest_at(std::string_view text, size_t begin, Allowed allowed) const {
    Match longest;
    auto first = ids_.begin();
    auto last = ids_.end();
    for (size_t length = 0; first != last; ++length) {
      // All in [first, last) begin with text[begin, begin + length); at most one is no longer.
      if (tokens_[*first].bytes.size() == length) {
        if (allowed(*first, begin, begin + length)) longest = {*first, begin, begin + length};
        ++first;
      }
      if (begin + length >= text.size()) break;
      const auto byte = static_cast<unsigned char>(text[begin + length]);
      const auto byte_at = [&](TokenId id) {
        return static_cast<unsigned char>(tokens_[id].bytes[length]);
      };
      first = std::partition_point(first, last, [&](TokenId id) { return byte_at(id) < byte; });
      last = std::partition_point(first, last, [&](TokenId id) { return byte_at(id) == byte; });
    }
    return longest;
  }

  const std::vector<TokenEntry>& tokens_;
  std::vector<TokenId> ids_;
  std::array<bool, 256> begins_{};
};

// A merge that is possible in a piece.
struct Candidate {
  uint32_t rank;
  int left_idx;
  TokenId left;
  TokenId right;
  TokenId merged;
};

// What merges next: the lowest rank, the leftmost of equals.
class CandidateHeap {
 public:
  bool empty() const { return heap_.empty(); }
  void clear() { heap_.clear(); }
  /// Before the first pop(): put() all, then begin().
  void put(const Candidate& candidate) { heap_.push_back(candidate); }
  void begin() { std::make_heap(heap_.begin(), heap_.end(), later); }
  void push(const Candidate& candidate) {
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  Candidate pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Candidate next = heap_.back();
    heap_.pop_back();
    return next;
  }

 private:
  static bool later(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left_idx > b.left_idx;
  }
  std::vector<Candidate> heap_;
};

// The same order for long pieces. Merges of one rank are found from left to right as long as the
// piece repeats itself: then they are a list, and a run of equal characters takes linear time.
class CandidatesByRank {
 public:
  bool empty() const { return ranks_.empty(); }
  void clear() { ranks_.clear(); }
  void put(const Candidate& candidate) { push(candidate); }
  void begin() {}
  void push(const Candidate& candidate) {
    Rank& rank = ranks_[candidate.rank];
    std::vector<Candidate>& all = rank.candidates;
    if (!rank.is_heap && !all.empty() && candidate.left_idx < all.back().left_idx) {
      all.erase(all.begin(), all.begin() + static_cast<ptrdiff_t>(rank.next));
      rank.next = 0;
      rank.is_heap = true;
      std::make_heap(all.begin(), all.end(), further_right);
    }
    all.push_back(candidate);
    if (rank.is_heap) std::push_heap(all.begin(), all.end(), further_right);
  }
  Candidate pop() {
    Rank& rank = ranks_.begin()->second;
    std::vector<Candidate>& all = rank.candidates;
    Candidate next;
    if (rank.is_heap) {
      std::pop_heap(all.begin(), all.end(), further_right);
      next = all.back();
      all.pop_back();
    } else {
      next = all[rank.next++];
    }
    if (rank.next == all.size()) ranks_.erase(ranks_.begin());
    return next;
  }

 private:
  struct Rank {
    std::vector<Candidate> candidates;
    size_t next = 0;  // of a list
    bool is_heap = false;
  };
  static bool further_right(const Candidate& a, const Candidate& b) {
    return a.left_idx > b.left_idx;
  }
  std::map<uint32_t, Rank> ranks_;
};

// The scratch of one encode call: a piece as a doubly linked list of tokens, and the merges that
// are possible in it.
class BpeScratch {
 public:
  /// Appends the tokens of `piece` to `ids`.
  void encode(std::string_view piece, const std::array<TokenId, 256>& byte_ids,
              const MergeTable& merges, std::vector<TokenId>& ids) {
    symbols_.clear();
    for (size_t i = 0; i < piece.size(); ++i)
      symbols_.push_back({byte_ids[static_cast<unsigned char>(piece[i])], static_cast<int>(i) - 1,
                          static_cast<int>(i) + 1});
    symbols_.back().next = -1;
    if (piece.size() < kLongPiece)
      merge(piece, merges, short_piece_);
    else
      merge(piece, merges, long_piece_);
    for (int i = 0; i >= 0; i = symbols_[i].next) ids.push_back(symbols_[i].id);
  }

 private:
  static constexpr size_t kLongPiece = 512;

  struct Symbol {
    TokenId id;
    int previous;
    int next;
  };

  template <typename Candidates>
  void merge(std::string_view piece, const MergeTable& merges, Candidates& candidates) {
    const auto candidate_of = [&](int left_idx, const Merge& merge) {
      const Symbol& left = symbols_[left_idx];
      return Candidate{merge.rank, left_idx, left.id, symbols_[left.next].id, merge.merged};
    };
    candidates.clear();
    for (size_t i = 0; i + 1 < piece.size(); ++i) {
      const Merge merge = merges.find_bytes(static_cast<unsigned char>(piece[i]),
                                            static_cast<unsigned char>(piece[i + 1]));
      if (merge.merged >= 0) candidates.put(candidate_of(static_cast<int>(i), merge));
    }
    candidates.begin();
    const auto propose_at = [&](int left_idx) {
      const Symbol& left = symbols_[left_idx];
      const Merge merge = merges.find(left.id, symbols_[left.next].id);
      if (merge.merged >= 0) candidates.push(candidate_of(left_idx, merge));
    };
    while (!candidates.empty()) {
      const Candidate best = candidates.pop();
      Symbol& left = symbols_[best.left_idx];
      // An earlier merge may have used one of the two.
      if (left.id != best.left || left.next < 0 || symbols_[left.next].id != best.right) continue;
      Symbol& right = symbols_[left.next];
      left.id = best.merged;
      left.next = right.next;
      right.id = -1;
      if (left.next >= 0) {
        symbols_[left.next].previous = best.left_idx;
        propose_at(best.left_idx);
      }
      if (left.previous >= 0) propose_at(left.previous);
    }
  }

  std::vector<Symbol> symbols_;
  CandidateHeap short_piece_;
  CandidatesByRank long_piece_;
};

// Pieces of several tokens that a text has shown lately: names come again. The text and the ids
// that it has given so far are the store; an entry says where to copy from.
class RepeatedPieces {
 public:
  /// Short texts get a table that is not worth clearing more of.
  explicit RepeatedPieces(std::string_view text)
      : text_(text), entries_(std::min<size_t>(std::bit_ceil(text.size() / 16 + 1), 4096)) {}

  /// Appends the tokens of `piece`, a part of the text, and returns true if they are known.
  bool append(std::string_view piece, size_t hash, std::vector<TokenId>& ids) const {
    const Entry& entry = entry_of(hash);
    if (text_.substr(entry.begin, entry.num_bytes) != piece) return false;
    for (uint32_t i = 0; i < entry.num_ids; ++i) {
      const TokenId id = ids[entry.ids_begin + i];
      ids.push_back(id);
    }
    return true;
  }

  /// The tokens of `piece` are those from `ids_begin` to the end of `ids`.
  void remember(std::string_view piece, size_t hash, size_t ids_begin,
                const std::vector<TokenId>& ids) {
    entry_of(hash) = {static_cast<uint32_t>(piece.data() - text_.data()),
                      static_cast<uint32_t>(piece.size()), static_cast<uint32_t>(ids_begin),
                      static_cast<uint32_t>(ids.size() - ids_begin)};
  }

 private:
  struct Entry {
    uint32_t begin = 0;
    uint32_t num_bytes = 0;  // no piece is empty
    uint32_t ids_begin = 0;
    uint32_t num_ids = 0;
  };

  const Entry& entry_of(size_t hash) const { return entries_[hash & (entries_.size() - 1)]; }
  Entry& entry_of(size_t hash) { return entries_[hash & (entries_.size() - 1)]; }

  std::string_view text_;
  std::vector<Entry> entries_;  // one place for a hash: the later piece takes it
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::kNotFound, path + ": cannot be opened");
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) throw Error(ErrorCode::kIo, path + ": cannot be read");
  return bytes;
}

}  // namespace

struct Tokenizer::Tables {
  struct Scratch {
    BpeScratch bpe;
    RepeatedPieces repeated;
  };

  TokenizerFile file;
  MergeTable merges;
  TokenIndex pieces;  // the BPE vocabulary by bytes
  AddedTokenTable added;
  std::vector<bool> is_chat;
  // True once BPE has made a piece that spells this token into this token alone: a token can be in
  // the vocabulary and out of the merges' reach. Every thread that finds out finds the same.
  mutable std::vector<std::atomic<bool>> is_direct;

  explicit Tables(TokenizerFile parsed)
      : file(std::move(parsed)),
        merges(file),
        pieces(file.num_model_tokens),
        added(file.tokens),
        is_chat(file.tokens.size()),
        is_direct(file.tokens.size()) {
    for (size_t id = 0; id < file.tokens.size(); ++id)
      if (file.tokens[id].is_used && !file.tokens[id].is_added)
        pieces.insert(file.tokens[id].bytes, static_cast<TokenId>(id));
    for (const std::string_view text : kChatTokens)
      if (const TokenId id = added.find_exact(text); id >= 0) is_chat[id] = true;
  }

  const TokenEntry& entry(TokenId id) const {
    if (id < 0 || static_cast<size_t>(id) >= file.tokens.size())
      throw Error(ErrorCode::kInvalidArgument, "token id " + std::to_string(id) + ": not in [0, " +
                                                   std::to_string(file.tokens.size()) + ")");
    return file.tokens[id];
  }

  void encode_piece(std::string_view piece, size_t hash, Scratch& scratch,
                    std::vector<TokenId>& ids) const {
    const TokenId id = pieces.find(piece, hash);
    if (id >= 0 && is_direct[id].load(std::memory_order_relaxed)) return ids.push_back(id);
    if (scratch.repeated.append(piece, hash, ids)) return;
    const size_t begin = ids.size();
    scratch.bpe.encode(piece, file.byte_ids, merges, ids);
    if (ids.size() == begin + 1)
      is_direct[ids.back()].store(true, std::memory_order_relaxed);
    else
      scratch.repeated.remember(piece, hash, begin, ids);
  }

  // Text without added tokens. Pieces are cut some ahead of their look-up, so that memory answers
  // meanwhile.
  void encode_plain(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const {
    struct Piece {
      std::string_view bytes;
      size_t hash;
    };
    std::array<Piece, 32> batch;
    for (size_t begin = 0; begin < text.size();) {
      size_t num_pieces = 0;
      for (; num_pieces < batch.size() && begin < text.size(); ++num_pieces) {
        const size_t end = piece_end(text, begin);
        const std::string_view bytes = text.substr(begin, end - begin);
        batch[num_pieces] = {bytes, TokenIndex::hash(bytes)};
        pieces.prefetch(batch[num_pieces].hash);
        begin = end;
      }
      for (size_t i = 0; i < num_pieces; ++i)
        encode_piece(batch[i].bytes, batch[i].hash, scratch, ids);
    }
  }

  template <typename Allowed>
  std::vector<TokenId> encode(std::string_view text, Allowed allowed) const {
    if (text.size() > kMaxTextBytes)
      throw Error(ErrorCode::kInvalidArgument,
                  "tokenizer: the text is longer than " + std::to_string(kMaxTextBytes) + " bytes");
    std::vector<TokenId> ids;
    ids.reserve(text.size() / 4 + 8);
    Scratch scratch{BpeScratch(), RepeatedPieces(text)};
    for (size_t begin = 0; begin < text.size();) {
      const AddedTokenTable::Match match = added.find(text, begin, allowed);
      const size_t plain_end = match.id >= 0 ? match.begin : text.size();
      encode_plain(text.substr(begin, plain_end - begin), scratch, ids);
      if (match.id < 0) break;
      ids.push_back(match.id);
      begin = match.end;
    }
    return ids;
  }

  // Positions inside a piece are ints.
  static constexpr size_t kMaxTextBytes = size_t{1} << 30;
};

Tokenizer::Tokenizer(std::unique_ptr<Tables> tables) : tables_(std::move(tables)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::parse(std::string_view tokenizer_json) {
  return Tokenizer(std::make_unique<Tables>(parse_tokenizer_file(tokenizer_json)));
}

Tokenizer Tokenizer::load(const std::string& path) {
  const std::string bytes = read_file(path);
  try {
    return parse(bytes);
  } catch (const Error& error) {
    throw Error(error.code(), path + ": " + error.what());
  }
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, AddedTokens added) const {
  switch (added) {
    case AddedTokens::kAll:
      return tables_->encode(text, [](TokenId, size_t, size_t) { return true; });
    case AddedTokens::kNotChat:
      return tables_->encode(text,
                             [this](TokenId id, size_t, size_t) { return !tables_->is_chat[id]; });
    case AddedTokens::kNone:
      break;
  }
  return tables_->encode(text, [](TokenId, size_t, size_t) { return false; });
}

std::vector<TokenId> Tokenizer::encode(std::string_view text,
                                       std::span<const ByteRange> client_ranges) const {
  return tables_->encode(text, [&](TokenId id, size_t begin, size_t end) {
    if (!tables_->is_chat[id]) return true;
    const auto range =
        std::partition_point(client_ranges.begin(), client_ranges.end(),
                             [&](const ByteRange& client) { return client.end <= begin; });
    return range == client_ranges.end() || range->begin >= end;
  });
}

int Tokenizer::vocab_size() const { return static_cast<int>(tables_->file.tokens.size()); }
std::string_view Tokenizer::token_bytes(TokenId id) const { return tables_->entry(id).bytes; }
const std::string& Tokenizer::token_text(TokenId id) const { return tables_->entry(id).text; }
bool Tokenizer::is_added(TokenId id) const { return tables_->entry(id).is_added; }
bool Tokenizer::is_special(TokenId id) const { return tables_->entry(id).is_special; }
bool Tokenizer::is_chat_token(TokenId id) const {
  tables_->entry(id);
  return tables_->is_chat[id];
}

std::optional<TokenId> Tokenizer::added_token(std::string_view text) const {
  const TokenId id = tables_->added.find_exact(text);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

}  // namespace onecard::text
