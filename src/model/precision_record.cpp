#include "model/precision_record.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "io/file.h"

namespace onecard::model {
namespace {

using ops::Exl3Precision;

constexpr const char* kFileName = "precision.json";
constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr int64_t kSamples = 64, kSampleBytes = 64;  // of every file

class Fnv1a {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) hash_ = (hash_ ^ uint64_t(b)) * 0x100000001b3;
  }
  void add(int64_t number) { add(std::as_bytes(std::span(&number, 1))); }
  std::string hex() const {
    std::ostringstream text;
    text << std::hex << hash_;
    return text.str();
  }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

const PrecisionMeasure* find(const std::optional<PrecisionRecord>& record,
                             const Arithmetic& arithmetic) {
  if (!record) return nullptr;
  for (const PrecisionMeasure& measure : record->measures)
    if (measure.arithmetic == arithmetic) return &measure;
  return nullptr;
}

const json::Value& member(const json::Value& object, const char* key) {
  const json::Value* const value = object.find(key);
  if (value == nullptr) throw Error(ErrorCode::kDataCorrupt, std::string(key) + ": missing");
  return *value;
}

}  // namespace

bool PrecisionMeasure::passes() const {
  return prompt_tokens >= kMinPromptTokens && decoded_tokens >= kMinDecodedTokens &&
         prompt_kl <= kMaxMeanKl && decoded_kl <= kMaxMeanKl;
}

std::span<const Arithmetic> measured_arithmetics() {
  static constexpr std::array<Arithmetic, 3> kAll{Arithmetic{true, Exl3Precision::kInt8},
                                                  Arithmetic{true, Exl3Precision::kInt16},
                                                  Arithmetic{false, Exl3Precision::kInt16}};
  return kAll;
}

std::string weights_fingerprint(const io::Checkpoint& checkpoint) {
  Fnv1a hash;
  for (const io::MappedFile& file : checkpoint.files()) {
    const int64_t size = file.file().size_bytes();
    hash.add(size);
    // The first sample is of the header: names, types and shapes decide where the others fall.
    std::array<std::byte, kSampleBytes> sample;
    for (int64_t i = 0; i < kSamples && size >= kSampleBytes; ++i) {
      file.file().read_exact((size - kSampleBytes) / (kSamples - 1) * i, sample);
      hash.add(sample);
    }
  }
  return hash.hex();
}

void write_precision_record(const std::string& directory, const PrecisionRecord& record) {
  json::Value measures = json::Value::array();
  for (const PrecisionMeasure& measure : record.measures) {
    json::Value value = json::Value::object();
    value.set("dense", json::Value::string(measure.arithmetic.dense_int16 ? "int16" : "exact"));
    value.set("experts", json::Value::string(ops::exl3_precision_name(
                             measure.arithmetic.experts.value_or(Exl3Precision::kF32))));
    value.set("prompt_tokens", json::Value::integer(measure.prompt_tokens));
    value.set("decoded_tokens", json::Value::integer(measure.decoded_tokens));
    value.set("prompt_mean_kl", json::Value::real(measure.prompt_kl));
    value.set("decoded_mean_kl", json::Value::real(measure.decoded_kl));
    value.set("largest_kl", json::Value::real(measure.largest_kl));
    measures.items().push_back(std::move(value));
  }
  json::Value root = json::Value::object();
  root.set("weights", json::Value::string(record.weights));
  root.set("measures", std::move(measures));
  io::write_file_atomically(directory + "/" + kFileName, json::dump(root));
}

std::optional<PrecisionRecord> read_precision_record(const io::Checkpoint& checkpoint) {
  const std::string path = checkpoint.directory() + "/" + kFileName;
  if (!std::filesystem::exists(path)) return std::nullopt;
  PrecisionRecord record;
  try {
    const json::Value root = json::parse(io::read_text_file(path, kMaxFileBytes));
    record.weights = member(root, "weights").as_string();
    for (const json::Value& value : member(root, "measures").items()) {
      PrecisionMeasure measure;
      measure.arithmetic.dense_int16 = member(value, "dense").as_string() == "int16";
      measure.arithmetic.experts =
          ops::exl3_precision_from_name(member(value, "experts").as_string());
      require(measure.arithmetic.experts.has_value(), ErrorCode::kDataCorrupt,
              "experts: expected exact, int16 or int8");
      measure.prompt_tokens = member(value, "prompt_tokens").as_int64().value_or(0);
      measure.decoded_tokens = member(value, "decoded_tokens").as_int64().value_or(0);
      measure.prompt_kl = member(value, "prompt_mean_kl").as_double();
      measure.decoded_kl = member(value, "decoded_mean_kl").as_double();
      measure.largest_kl = member(value, "largest_kl").as_double();
      record.measures.push_back(measure);
    }
  } catch (const Error& error) {
    throw Error(ErrorCode::kDataCorrupt,
                path + ": " + error.what() + "; remove it, or write it with onecard precision");
  }
  if (record.weights != weights_fingerprint(checkpoint)) return std::nullopt;
  return record;
}

Arithmetic choose_arithmetic(const std::optional<PrecisionRecord>& record,
                             std::optional<Exl3Precision> asked) {
  const auto passes = [&](const Arithmetic& a) {
    const PrecisionMeasure* const measure = find(record, a);
    return measure != nullptr && measure->passes();
  };
  if (asked == Exl3Precision::kF32) return {false, asked};
  if (asked == Exl3Precision::kInt8) {
    const Arithmetic int8{true, Exl3Precision::kInt8};
    if (passes(int8)) return int8;
    std::ostringstream text;
    text << "--expert-precision int8: this model's predictions have to stay within "
         << PrecisionMeasure::kMaxMeanKl << " nats of the exact ones on average: ";
    if (const PrecisionMeasure* const measure = find(record, int8))
      text << "measured were " << measure->prompt_kl << " over a prompt of "
           << measure->prompt_tokens << " tokens, " << measure->decoded_kl << " over "
           << measure->decoded_tokens << " decoded ones";
    else
      text << "not measured for these weights (onecard precision, where there is AVX-512 VNNI)";
    throw Error(ErrorCode::kInvalidArgument, text.str());
  }
  for (const Arithmetic& a : measured_arithmetics())
    if (a.experts == Exl3Precision::kInt16 && passes(a)) return a;
  return {false, asked};
}

}  // namespace onecard::model
