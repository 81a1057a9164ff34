#include "quantize/checkpoint_quantizer.h"

#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "io/file.h"
#include "io/safetensors_writer.h"
#include "quant/exl3/codebook.h"
#include "quantize/matrix_quantizer.h"
#include "quantize/source_matrix.h"
#include "tensor/dtype.h"

namespace onecard::quantize {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kJournalFile = "quantize.json";
constexpr int64_t kMaxTextBytes = 256 << 20;

void append(std::string& bytes, std::span<const uint16_t> values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// The bytes of a matrix's tensors, in the order of PackItem::tensors.
std::string tensor_bytes(const QuantizedMatrix& matrix) {
  std::string bytes;
  append(bytes, matrix.suh);
  append(bytes, matrix.svh);
  if (matrix.codebook != exl3::Codebook::k3Inst) {
    const uint32_t marker =
        matrix.codebook == exl3::Codebook::kMul1 ? exl3::kMul1Multiplier : exl3::kMcgMultiplier;
    bytes.append(reinterpret_cast<const char*>(&marker), sizeof(marker));
  }
  append(bytes, matrix.trellis);
  return bytes;
}

// An expert stays in one shard, and so do the tensors of a matrix.
std::string_view shard_group(std::string_view name) {
  const auto parent = [](std::string_view of) {
    const size_t dot = of.rfind('.');
    return dot == std::string_view::npos ? of : of.substr(0, dot);
  };
  const std::string_view module = parent(name);
  return module.find(".ffn.experts.") != std::string_view::npos ? parent(module) : module;
}

json::Value options_json(const QuantizeCheckpointOptions& options) {
  const PackBits& bits = options.pack.bits;
  json::Value value = json::Value::object();
  const auto set = [&](const char* key, int64_t number) {
    value.set(key, json::Value::integer(number));
  };
  set("experts", bits.experts);
  set("shared", bits.shared);
  set("attention", bits.attention);
  set("engram", bits.engram);
  set("head", bits.head);
  set("draft", bits.draft);
  set("o_groups", options.pack.o_groups);
  set("narrow_f32", options.pack.narrow_f32 ? 1 : 0);
  set("shard_bytes", options.shard_bytes);
  value.set("codebook", json::Value::string(exl3::codebook_name(options.pack.codebook)));
  value.set("calibration", json::Value::string(options.calibration));
  return value;
}

class Run {
 public:
  Run(const Exec& exec, const io::Checkpoint& source, const std::string& destination,
      const QuantizeCheckpointOptions& options)
      : exec_(exec),
        source_(source),
        options_(options),
        destination_(destination),
        partial_(destination + ".partial"),
        parts_(partial_ + "/parts"),
        items_(plan_pack(source, options.pack)) {
    if (fs::exists(destination_))
      throw Error(ErrorCode::kInvalidArgument, "quantize: " + destination_ + " exists already");
    std::vector<io::TensorSpec> tensors;
    for (const PackItem& item : items_) {
      tensors.insert(tensors.end(), item.tensors.begin(), item.tensors.end());
      if (item.kind != PackItem::Kind::kQuantize) continue;
      ++progress_.num_modules;
      progress_.num_weights += item.num_weights();
    }
    shards_ = io::plan_shards(std::move(tensors), options.shard_bytes, shard_group);
  }

  void go() {
    begin();
    size_t next = 0;  // items_ in order make up the shards
    for (const io::ShardSpec& shard : shards_) {
      const size_t first = next;
      for (size_t left = shard.tensors.size(); left > 0; ++next)
        left -= items_[next].tensors.size();
      make_shard(shard, std::span(items_).subspan(first, next - first));
    }
    finish();
  }

 private:
  std::string part_file(const PackItem& item) const { return parts_ + "/" + item.name; }

  void begin() {
    std::error_code error;
    fs::create_directories(parts_, error);
    if (error) throw Error(ErrorCode::kIo, parts_ + ": cannot create: " + error.message());
    const std::string journal = partial_ + "/" + kJournalFile;
    const std::string wanted = json::dump(options_json(options_));
    if (!fs::exists(journal)) return io::write_file_atomically(journal, wanted);
    const std::string found = io::read_text_file(journal, kMaxTextBytes);
    if (found != wanted)
      throw Error(ErrorCode::kInvalidArgument, "quantize: " + partial_ +
                                                   " was begun with other options: " + found +
                                                   "; remove it, or use those");
  }

  void make_shard(const io::ShardSpec& shard, std::span<const PackItem> items) {
    const bool complete = fs::exists(partial_ + "/" + shard.file);
    for (const PackItem& item : items)
      if (item.kind == PackItem::Kind::kQuantize) make_part(item, complete);
    if (complete) return;
    io::SafetensorsWriter writer(partial_, {shard});
    for (const PackItem& item : items) write_item(writer, item);
    writer.finish();
    for (const PackItem& item : items) fs::remove(part_file(item));
  }

  void make_part(const PackItem& item, bool complete) {
    ModuleReport report;
    report.module = item.name;
    report.bits = item.bits;
    report.num_weights = item.num_weights();
    if (!complete && !fs::exists(part_file(item))) {
      const Buffer<float> w = read_matrix(source_, item.source, item.source_rows, item.row_begin,
                                          item.out_features, item.in_features);
      std::vector<double> hessian;
      if (options_.hessians != nullptr) hessian = options_.hessians->of(item);
      MatrixOptions matrix_options;
      matrix_options.bits = item.bits;
      matrix_options.codebook = options_.pack.codebook;
      matrix_options.seed = seed_of(item.name);
      const QuantizedMatrix matrix = quantize_matrix(
          exec_, w.view(item.out_features, item.in_features), hessian, matrix_options);
      io::write_file_atomically(part_file(item), tensor_bytes(matrix));
      report.scale = matrix.scale;
      report.relative_error = matrix.relative_error;
      report.proxy_error = matrix.proxy_error;
      progress_.weights_this_run += item.num_weights();
    }
    ++progress_.modules_done;
    progress_.weights_done += item.num_weights();
    if (options_.on_module) options_.on_module(progress_, report);
  }

  void write_item(io::SafetensorsWriter& writer, const PackItem& item) const {
    switch (item.kind) {
      case PackItem::Kind::kCopy: {
        const io::StoredTensor& tensor = source_.at(item.source);
        tensor.file->check_unchanged();
        writer.append(item.name, tensor.bytes);
        io::Checkpoint::drop_pages(tensor);
        return;
      }
      case PackItem::Kind::kNarrow: {
        const io::StoredTensor& tensor = source_.at(item.source);
        std::vector<float> wide(tensor.bytes.size() / sizeof(float));
        io::Checkpoint::read(tensor, 0, std::as_writable_bytes(std::span(wide)));
        std::vector<uint16_t> narrow;
        for (const float value : wide) {
          narrow.push_back(f32_to_f16(value));
          if (std::isfinite(value) && !std::isfinite(f16_to_f32(narrow.back())))
            throw Error(ErrorCode::kInvalidArgument, "quantize: " + item.name + " holds " +
                                                         std::to_string(value) +
                                                         ", which is beyond F16");
        }
        writer.append(item.name, std::as_bytes(std::span(narrow)));
        return;
      }
      case PackItem::Kind::kQuantize: {
        const std::string bytes = io::read_text_file(part_file(item), kMaxTextBytes << 4);
        size_t at = 0;
        for (const io::TensorSpec& tensor : item.tensors) {
          const auto size = size_t(tensor.size_bytes());
          if (at + size > bytes.size())
            throw Error(ErrorCode::kDataCorrupt,
                        part_file(item) + ": " + std::to_string(bytes.size()) +
                            " bytes are too few for " + tensor.name + "; remove the file");
          writer.append(tensor.name, std::as_bytes(std::span(bytes).subspan(at, size)));
          at += size;
        }
        return;
      }
    }
  }

  std::string index_json() const {
    int64_t total = 0;
    json::Value map = json::Value::object();
    std::vector<json::Member>& members = map.members();
    for (const io::ShardSpec& shard : shards_)
      for (const io::TensorSpec& tensor : shard.tensors) {
        total += tensor.size_bytes();
        members.emplace_back(tensor.name, json::Value::string(shard.file));
      }
    json::Value metadata = json::Value::object();
    metadata.set("total_size", json::Value::integer(total));
    json::Value index = json::Value::object();
    index.set("metadata", std::move(metadata));
    index.set("weight_map", std::move(map));
    return json::dump(index);
  }

  std::string config_json() const {
    json::Value config =
        json::parse(io::read_text_file(source_.directory() + "/config.json", kMaxTextBytes));
    double bits = 0, weights = 0;
    for (const PackItem& item : items_)
      if (item.kind == PackItem::Kind::kQuantize && item.name != "head" &&
          item.name.compare(0, 4, "mtp.") != 0) {
        bits += double(item.bits) * double(item.num_weights());
        weights += double(item.num_weights());
      }
    json::Value quantization = json::Value::object();
    quantization.set("quant_method", json::Value::string("exl3"));
    quantization.set("bits",
                     json::Value::real(weights > 0 ? std::round(100 * bits / weights) / 100 : 0));
    quantization.set("head_bits", json::Value::integer(options_.pack.bits.head));
    quantization.set("mtp_bits", json::Value::integer(options_.pack.bits.draft));
    quantization.set("out_scales", json::Value::string("always"));
    quantization.set("codebook", json::Value::string(exl3::codebook_name(options_.pack.codebook)));
    if (options_.calibration_tokens > 0) {
      json::Value calibration = json::Value::object();
      calibration.set("tokens", json::Value::integer(options_.calibration_tokens));
      quantization.set("calibration", std::move(calibration));
    }
    if (const json::Value* original = config.find("quantization_config"))
      quantization.set("original_quantization_config", *original);
    config.set("quantization_config", std::move(quantization));
    return json::dump(config);
  }

  void finish() {
    if (shards_.size() > 1) io::write_file_atomically(partial_ + "/" + kIndexFile, index_json());
    io::write_file_atomically(partial_ + "/config.json", config_json());
    for (const auto& [name, content] : options_.files)
      io::write_file_atomically(partial_ + "/" + name, content);
    fs::remove_all(parts_);
    fs::remove(partial_ + "/" + kJournalFile);
    std::error_code error;
    fs::rename(partial_, destination_, error);
    if (error)
      throw Error(ErrorCode::kIo,
                  partial_ + ": cannot rename to " + destination_ + ": " + error.message());
  }

  const Exec& exec_;
  const io::Checkpoint& source_;
  const QuantizeCheckpointOptions& options_;
  const std::string destination_;
  const std::string partial_;
  const std::string parts_;
  const std::vector<PackItem> items_;
  std::vector<io::ShardSpec> shards_;
  Progress progress_;
};

}  // namespace

void quantize_checkpoint(const Exec& exec, const io::Checkpoint& source,
                         const std::string& destination, const QuantizeCheckpointOptions& options) {
  Run(exec, source, destination, options).go();
}

}  // namespace onecard::quantize
