#include "text/tokenizer_file.h"

#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "text/pre_tokenizer.h"
#include "text/utf8.h"

namespace onecard::text {
namespace {

// Bounds on what an untrusted file may make us allocate or scan.
constexpr int64_t kMaxTokenId = (1 << 22) - 1;
constexpr size_t kMaxTokenBytes = 4096;

[[noreturn]] void corrupt(const std::string& what) {
  throw Error(ErrorCode::kDataCorrupt, "tokenizer.json: " + what);
}

[[noreturn]] void unsupported(const std::string& what) {
  throw Error(ErrorCode::kUnsupported, "tokenizer.json: " + what);
}

// Quotes text of the file for a message: printable ASCII only, and not all of it.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text.substr(0, 60)) result += c >= 0x20 && c <= 0x7e ? c : '?';
  if (text.size() > 60) result += "...";
  return result + '"';
}

const json::Value& member(const json::Value& object, std::string_view key,
                          const std::string& path) {
  const json::Value* value = object.find(key);
  if (value == nullptr) corrupt(path + std::string(key) + " is missing");
  return *value;
}

// A member that has to be absent, null, or one of the values that mean "off".
bool is_off(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  if (value == nullptr || value->is_null()) return true;
  if (value->is_bool()) return !value->as_bool();
  if (value->is_string()) return value->as_string().empty();
  if (value->is_number()) return value->as_double() == 0;
  return false;
}

bool has_type(const json::Value& object, std::string_view type) {
  const json::Value* value = object.find("type");
  return value != nullptr && value->is_string() && value->as_string() == type;
}

bool is_true(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  return value != nullptr && value->is_bool() && value->as_bool();
}

const std::vector<json::Value>& items_of(const json::Value& value, const std::string& path) {
  if (!value.is_array()) corrupt(path + " is not an array");
  return value.items();
}

const std::string& string_of(const json::Value& value, const std::string& path) {
  if (!value.is_string()) corrupt(path + " is not a string");
  return value.as_string();
}

int32_t id_of(const json::Value& value, const std::string& path) {
  const std::optional<int64_t> id = value.is_number() ? value.as_int64() : std::nullopt;
  if (!id || *id < 0 || *id > kMaxTokenId)
    corrupt(path + " is not an id between 0 and " + std::to_string(kMaxTokenId));
  return static_cast<int32_t>(*id);
}

// The byte-level alphabet: printable Latin-1 characters stand for themselves, the other 68 bytes
// are U+0100 and up, in order.
struct ByteAlphabet {
  std::array<char32_t, 256> char_of_byte{};
  std::array<int, 0x200> byte_of_char{};

  ByteAlphabet() {
    byte_of_char.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte <= 0xFF && byte != 0xAD);
      char_of_byte[byte] = printable ? static_cast<char32_t>(byte) : next++;
      byte_of_char[char_of_byte[byte]] = byte;
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

// Nothing but the pre-tokeniser that piece_end() implements.
void check_pre_tokenizer(const json::Value& value) {
  const auto refuse = [](const std::string& what) {
    unsupported("pre_tokenizer: " + what +
                "; implemented is the DeepSeek sequence of three splits and a byte level");
  };
  if (!has_type(value, "Sequence")) refuse("not a Sequence");
  const auto& steps =
      items_of(member(value, "pretokenizers", "pre_tokenizer."), "pre_tokenizer.pretokenizers");
  if (steps.size() != kPreTokenizerPatterns.size() + 1)
    refuse("it has " + std::to_string(steps.size()) + " steps");
  for (size_t i = 0; i < kPreTokenizerPatterns.size(); ++i) {
    const std::string name = "step " + std::to_string(i);
    const json::Value* behavior = steps[i].find("behavior");
    const json::Value* pattern = steps[i].find("pattern");
    const json::Value* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
    if (!has_type(steps[i], "Split") || behavior == nullptr || !behavior->is_string() ||
        behavior->as_string() != "Isolated" || is_true(steps[i], "invert"))
      refuse(name + " is not a split that isolates its matches");
    if (regex == nullptr || !regex->is_string() || !is_pre_tokenizer_pattern(regex->as_string(), i))
      refuse(name + " has another expression");
  }
  const json::Value& last = steps.back();
  if (!has_type(last, "ByteLevel") || !is_off(last, "add_prefix_space") ||
      !is_off(last, "use_regex"))
    refuse("the last step is not a plain byte level");
}

void check_pipeline(const json::Value& root) {
  for (const char* key : {"truncation", "padding"})
    if (!is_off(root, key)) unsupported(std::string(key) + ": has to be null");
  if (!is_off(root, "normalizer")) {
    const json::Value& normalizer = *root.find("normalizer");
    if (!has_type(normalizer, "Sequence") ||
        !items_of(member(normalizer, "normalizers", "normalizer."), "normalizer.normalizers")
             .empty())
      unsupported("normalizer: only an empty one is implemented");
  }
  check_pre_tokenizer(member(root, "pre_tokenizer", ""));
  if (!is_off(root, "post_processor") && !has_type(*root.find("post_processor"), "ByteLevel"))
    unsupported("post_processor: only ByteLevel, which adds no tokens, is implemented");
  if (!has_type(member(root, "decoder", ""), "ByteLevel"))
    unsupported("decoder: only ByteLevel is implemented");
}

void check_model(const json::Value& model) {
  if (!has_type(model, "BPE")) unsupported("model: only BPE is implemented");
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                          "byte_fallback", "ignore_merges"})
    if (!is_off(model, key)) unsupported(std::string("model.") + key + ": is not implemented");
}

class Builder {
 public:
  void add_vocabulary(const json::Value& vocab) {
    if (!vocab.is_object()) corrupt("model.vocab is not an object");
    ids_.reserve(vocab.members().size());
    for (const auto& [text, value] : vocab.members()) {
      const std::string path = "model.vocab[" + quoted(text) + "]";
      TokenEntry& entry = claim(id_of(value, path), path);
      check_length(text, path);
      entry.text = text;
      entry.bytes = byte_level_decode(text);
      ids_.emplace(text, static_cast<int32_t>(&entry - file_.tokens.data()));
    }
    file_.num_model_tokens = static_cast<int>(ids_.size());
    for (int byte = 0; byte < 256; ++byte) {
      std::string text;
      append_code_point(text, byte_alphabet().char_of_byte[byte]);
      const auto found = ids_.find(text);
      if (found == ids_.end())
        corrupt("model.vocab has no token for the single byte " + std::to_string(byte));
      file_.byte_ids[byte] = found->second;
    }
  }

  void add_merges(const json::Value& merges) {
    std::unordered_set<uint64_t> pairs;
    for (const json::Value& value : items_of(merges, "model.merges")) {
      const std::string path = "model.merges[" + std::to_string(file_.merges.size()) + "]";
      const auto [left, right] = sides(value, path);
      const MergeRule rule{id_of_text(left, path), id_of_text(right, path),
                           id_of_text(std::string(left) + std::string(right), path)};
      const uint64_t pair =
          static_cast<uint64_t>(rule.left) << 32 | static_cast<uint32_t>(rule.right);
      if (!pairs.insert(pair).second) corrupt(path + " repeats a pair");
      file_.merges.push_back(rule);
    }
  }

  void add_added_tokens(const json::Value& tokens) {
    std::unordered_set<std::string> seen;
    for (const json::Value& value : items_of(tokens, "added_tokens")) {
      const std::string path = "added_tokens[" + std::to_string(seen.size()) + "].";
      const int32_t id = id_of(member(value, "id", path), path + "id");
      const std::string& text = string_of(member(value, "content", path), path + "content");
      if (text.empty()) corrupt(path + "content is empty");
      check_length(text, path + "content");
      if (!seen.insert(text).second) corrupt(path + "content " + quoted(text) + " appears twice");
      for (const char* flag : {"single_word", "lstrip", "rstrip"})
        if (is_true(value, flag)) unsupported(path + flag + ": is not implemented");
      // An added token may name an entry of the vocabulary, but no other id may have its text.
      const auto found = ids_.find(text);
      if (found != ids_.end() && found->second != id)
        corrupt(path + "id is " + std::to_string(id) + ", in the vocabulary " + quoted(text) +
                " is " + std::to_string(found->second));
      TokenEntry& entry =
          found != ids_.end() ? file_.tokens[id] : claim(id, path + "content " + quoted(text));
      entry.text = text;
      entry.bytes = text;
      entry.is_added = true;
      entry.is_special = is_true(value, "special");
    }
  }

  TokenizerFile take() { return std::move(file_); }

 private:
  static void check_length(std::string_view text, const std::string& path) {
    if (text.size() > kMaxTokenBytes)
      corrupt(path + " is longer than " + std::to_string(kMaxTokenBytes) + " bytes");
  }

  TokenEntry& claim(int32_t id, const std::string& path) {
    if (static_cast<size_t>(id) >= file_.tokens.size()) file_.tokens.resize(id + 1);
    TokenEntry& entry = file_.tokens[id];
    if (entry.is_used)
      corrupt(path + " has the id " + std::to_string(id) + " of " + quoted(entry.text));
    entry.is_used = true;
    return entry;
  }

  // A merge is "left right" or ["left", "right"].
  static std::pair<std::string_view, std::string_view> sides(const json::Value& value,
                                                             const std::string& path) {
    if (value.is_array() && value.items().size() == 2)
      return {string_of(value.items()[0], path), string_of(value.items()[1], path)};
    if (!value.is_string()) corrupt(path + " is no pair");
    const std::string_view text = value.as_string();
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      corrupt(path + " is not two tokens with one space between them");
    return {text.substr(0, space), text.substr(space + 1)};
  }

  int32_t id_of_text(std::string_view text, const std::string& path) const {
    const auto found = ids_.find(std::string(text));
    if (found == ids_.end()) corrupt(path + ": " + quoted(text) + " is not in the vocabulary");
    return found->second;
  }

  TokenizerFile file_;
  std::unordered_map<std::string, int32_t> ids_;
};

json::Value parse_json(std::string_view text) {
  try {
    return json::parse(text, {.max_depth = 16, .duplicate_keys = json::DuplicateKeys::kReject});
  } catch (const Error& error) {
    corrupt(error.what());
  }
}

}  // namespace

std::string byte_level_decode(std::string_view text) {
  const ByteAlphabet& alphabet = byte_alphabet();
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text.substr(at));
    const bool known =
        c.value < alphabet.byte_of_char.size() && alphabet.byte_of_char[c.value] >= 0;
    if (!known) return std::string(text);
    bytes += static_cast<char>(alphabet.byte_of_char[c.value]);
    at += c.num_bytes;
  }
  return bytes;
}

TokenizerFile parse_tokenizer_file(std::string_view tokenizer_json) {
  const json::Value root = parse_json(tokenizer_json);
  if (!root.is_object()) corrupt("not an object");
  check_pipeline(root);
  const json::Value& model = member(root, "model", "");
  check_model(model);
  Builder builder;
  builder.add_vocabulary(member(model, "vocab", "model."));
  builder.add_merges(member(model, "merges", "model."));
  if (const json::Value* added = root.find("added_tokens")) builder.add_added_tokens(*added);
  return builder.take();
}

}  // namespace onecard::text
