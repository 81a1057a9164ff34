#include "text/tokenizer_file.h"

#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "text/pre_tokenizer.h"
#include "text/token_index.h"
#include "text/utf8.h"

namespace onecard::text {
namespace {

// Bounds on what an untrusted file may make us allocate or scan.
constexpr int64_t kMaxTokenId = (1 << 22) - 1;
constexpr size_t kMaxTokenBytes = 4096;

[[noreturn]] void corrupt(const std::string& what) { throw Error(ErrorCode::kDataCorrupt, what); }

[[noreturn]] void unsupported(const std::string& what) {
  throw Error(ErrorCode::kUnsupported, what);
}

// Runs `body`; what it throws is told with the place in front, which costs nothing when all is
// well.
template <typename Path, typename Body>
void at(const Path& path, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    throw Error(error.code(), path() + ": " + error.what());
  }
}

// A token in a message: enough of it to find it.
std::string quoted(std::string_view text) { return json::quoted(text.substr(0, 60)); }

const json::Value& member(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  if (value == nullptr) corrupt(std::string(key) + " is missing");
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

bool is_true(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  return value != nullptr && value->is_bool() && value->as_bool();
}

bool is_string(const json::Value& object, std::string_view key, std::string_view text) {
  const json::Value* value = object.find(key);
  return value != nullptr && value->is_string() && value->as_string() == text;
}

bool has_type(const json::Value& object, std::string_view type) {
  return is_string(object, "type", type);
}

const std::vector<json::Value>& array(const json::Value& value, std::string_view name) {
  if (!value.is_array()) corrupt(std::string(name) + " is not an array");
  return value.items();
}

const std::string& string(const json::Value& value, std::string_view name) {
  if (!value.is_string()) corrupt(std::string(name) + " is not a string");
  return value.as_string();
}

int32_t id_of(const json::Value& value) {
  const std::optional<int64_t> id = value.is_number() ? value.as_int64() : std::nullopt;
  if (!id || *id < 0 || *id > kMaxTokenId)
    corrupt("the id is not a number between 0 and " + std::to_string(kMaxTokenId));
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
  const auto& steps = array(member(value, "pretokenizers"), "pre_tokenizer.pretokenizers");
  if (steps.size() != kPreTokenizerPatterns.size() + 1)
    refuse("it has " + std::to_string(steps.size()) + " steps");
  for (size_t i = 0; i < kPreTokenizerPatterns.size(); ++i) {
    const std::string name = "step " + std::to_string(i);
    if (!has_type(steps[i], "Split") || !is_string(steps[i], "behavior", "Isolated") ||
        is_true(steps[i], "invert"))
      refuse(name + " is not a split that isolates its matches");
    const json::Value* pattern = steps[i].find("pattern");
    const json::Value* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
    if (regex == nullptr || !regex->is_string() || !is_pre_tokenizer_pattern(regex->as_string(), i))
      refuse(name + " has another expression");
  }
  const json::Value& last = steps.back();
  if (!has_type(last, "ByteLevel") || is_true(last, "add_prefix_space") ||
      !is_off(last, "use_regex"))
    refuse("the last step is not a plain byte level");
}

void check_pipeline(const json::Value& root) {
  for (const char* key : {"truncation", "padding"})
    if (!is_off(root, key)) unsupported(std::string(key) + ": has to be null");
  if (!is_off(root, "normalizer")) {
    const json::Value& normalizer = member(root, "normalizer");
    if (!has_type(normalizer, "Sequence") ||
        !array(member(normalizer, "normalizers"), "normalizer.normalizers").empty())
      unsupported("normalizer: only an empty one is implemented");
  }
  check_pre_tokenizer(member(root, "pre_tokenizer"));
  if (!is_off(root, "post_processor") && !has_type(member(root, "post_processor"), "ByteLevel"))
    unsupported("post_processor: only ByteLevel, which adds no tokens, is implemented");
  if (!has_type(member(root, "decoder"), "ByteLevel"))
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
    ids_ = TokenIndex(vocab.members().size());
    file_.tokens.reserve(vocab.members().size());
    for (const auto& [text, value] : vocab.members()) {
      at([&text = text] { return "model.vocab[" + quoted(text) + "]"; },
         [&, &text = text, &value = value] {
           const int32_t id = id_of(value);
           check_length(text);
           TokenEntry& entry = claim(id);
           entry.text = text;
           entry.bytes = byte_level_decode(text);
           ids_.insert(text, id);  // keys are unique: the JSON parser refuses others
         });
    }
    file_.num_model_tokens = static_cast<int>(vocab.members().size());
    for (int byte = 0; byte < 256; ++byte) {
      std::string text;
      append_code_point(text, byte_alphabet().char_of_byte[byte]);
      file_.byte_ids[byte] = ids_.find(text);
      if (file_.byte_ids[byte] < 0)
        corrupt("model.vocab has no token for the single byte " + std::to_string(byte));
    }
  }

  void add_merges(const json::Value& merges) {
    const auto& rules = array(merges, "model.merges");
    std::unordered_set<uint64_t> pairs;
    pairs.reserve(rules.size());
    file_.merges.reserve(rules.size());
    for (const json::Value& value : rules) {
      at([&] { return "model.merges[" + std::to_string(file_.merges.size()) + "]"; },
         [&] {
           const auto [left, right] = sides(value);
           std::string merged(left);
           merged += right;
           const MergeRule rule{id_of_text(left), id_of_text(right), id_of_text(merged)};
           if (!pairs.insert(static_cast<uint64_t>(rule.left) << 32 | rule.right).second)
             corrupt("the pair is there twice");
           file_.merges.push_back(rule);
         });
    }
  }

  void add_added_tokens(const json::Value& tokens) {
    std::unordered_set<std::string> seen;
    for (const json::Value& value : array(tokens, "added_tokens")) {
      at([&] { return "added_tokens[" + std::to_string(seen.size()) + "]"; },
         [&] {
           const int32_t id = id_of(member(value, "id"));
           const std::string& text = string(member(value, "content"), "content");
           if (text.empty()) corrupt("content is empty");
           check_length(text);
           for (const char* flag : {"single_word", "lstrip", "rstrip"})
             if (is_true(value, flag)) unsupported(std::string(flag) + " is not implemented");
           // An added token may name an entry of the vocabulary, but no other id may have its text.
           const int32_t known = ids_.find(text);
           if (known >= 0 && known != id)
             corrupt("the id is " + std::to_string(id) + ", in the vocabulary " + quoted(text) +
                     " has " + std::to_string(known));
           TokenEntry& entry = known >= 0 ? file_.tokens[id] : claim(id);
           entry.text = text;
           entry.bytes = text;
           entry.is_added = true;
           entry.is_special = is_true(value, "special");
           if (!seen.insert(text).second) corrupt("content " + quoted(text) + " is there twice");
         });
    }
  }

  TokenizerFile take() { return std::move(file_); }

 private:
  static void check_length(std::string_view text) {
    if (text.size() > kMaxTokenBytes)
      corrupt("the text is longer than " + std::to_string(kMaxTokenBytes) + " bytes");
  }

  TokenEntry& claim(int32_t id) {
    if (static_cast<size_t>(id) >= file_.tokens.size()) file_.tokens.resize(id + 1);
    TokenEntry& entry = file_.tokens[id];
    if (entry.is_used)
      corrupt("the id " + std::to_string(id) + " belongs to " + quoted(entry.text));
    entry.is_used = true;
    return entry;
  }

  // A merge is "left right" or ["left", "right"].
  static std::pair<std::string_view, std::string_view> sides(const json::Value& value) {
    if (value.is_array() && value.items().size() == 2)
      return {string(value.items()[0], "the left side"),
              string(value.items()[1], "the right side")};
    const std::string_view text = string(value, "it");
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      corrupt("it is not two tokens with one space between them");
    return {text.substr(0, space), text.substr(space + 1)};
  }

  int32_t id_of_text(std::string_view text) const {
    const int32_t id = ids_.find(text);
    if (id < 0) corrupt(quoted(text) + " is not in the vocabulary");
    return id;
  }

  TokenizerFile file_;
  TokenIndex ids_{0};  // of the vocabulary's texts
};

TokenizerFile parse(std::string_view tokenizer_json) {
  json::Value root;
  try {
    root = json::parse(tokenizer_json,
                       {.max_depth = 16, .duplicate_keys = json::DuplicateKeys::kReject});
  } catch (const Error& error) {
    corrupt(error.what());
  }
  if (!root.is_object()) corrupt("not an object");
  check_pipeline(root);
  const json::Value& model = member(root, "model");
  check_model(model);
  Builder builder;
  builder.add_vocabulary(member(model, "vocab"));
  builder.add_merges(member(model, "merges"));
  if (const json::Value* added = root.find("added_tokens")) builder.add_added_tokens(*added);
  return builder.take();
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
  TokenizerFile file;
  at([] { return std::string("tokenizer.json"); }, [&] { file = parse(tokenizer_json); });
  return file;
}

}  // namespace onecard::text
