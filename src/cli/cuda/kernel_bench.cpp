#include "cli/kernel_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "base/error.h"
#include "device/cuda/event.h"
#include "device/cuda/graph.h"
#include "device/cuda/memory.h"
#include "device/cuda/probe.h"
#include "device/cuda/stream.h"
#include "ops/attention.h"
#include "ops/hyper_connection.h"
#include "ops/indexer.h"
#include "ops/kv_rows.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/routed_experts.h"
#include "ops/router.h"
#include "ops/swiglu.h"
#include "quant/exl3/layout.h"
#include "tensor/dtype.h"

namespace onecard::cli {
namespace {

constexpr int64_t kHidden = 5120, kIntermediate = 2304, kHeads = 64, kHeadDim = 512;
constexpr int64_t kStreams = 4, kQueryRank = 1280, kOutGroups = 8, kOutRank = 1024;
constexpr int64_t kIndexHeads = 32, kIndexDim = 128, kTopK = 512, kWindow = 128, kRotary = 64;
constexpr int64_t kNumExperts = 384, kExpertsPerToken = 6, kLayers = 40, kVocab = 129280;
constexpr int64_t kColdBytes = 256 << 20;  // of weights in a graph: several second-level caches

std::vector<float> random_values(int64_t count, unsigned seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

/// sqrt(sum (got - want)^2 / sum want^2); infinite where a value is no number.
double relative_error(std::span<const float> got, std::span<const float> want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    error += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
    size += double(want[i]) * want[i];
  }
  return std::sqrt(error / size);
}

/// The device with all that the benches share; memory is freed entry by entry.
class Bench {
 public:
  explicit Bench(const KernelBenchOptions& options) : options_(options) {
    ONECARD_CUDA_CHECK(cudaGetDeviceProperties(&properties_, 0));
    scratch_ = cuda::DeviceBlock(scratch_bytes());
    exec.backend = Backend::kCuda;
    exec.stream = stream.get();
    exec.scratch = {scratch_.data(), scratch_.bytes()};
    ONECARD_CUDA_CHECK(
        cudaMemsetAsync(scratch_.data(), 0, DeviceScratch::kCounterBytes, stream.get()));
  }

  json::Value run();

  /// Device memory that lives until the entry is done.
  template <typename T>
  T* allocate(int64_t count) {
    blocks_.emplace_back(count * int64_t(sizeof(T)) + 256);
    return reinterpret_cast<T*>(blocks_.back().data());
  }
  template <typename T>
  T* upload(const std::vector<T>& values) {
    T* const data = allocate<T>(int64_t(values.size()));
    ONECARD_CUDA_CHECK(cudaMemcpyAsync(data, values.data(), values.size() * sizeof(T),
                                       cudaMemcpyDefault, stream.get()));
    synchronize();
    return data;
  }
  template <typename T>
  std::vector<T> download(const T* data, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    ONECARD_CUDA_CHECK(cudaMemcpyAsync(values.data(), data, values.size() * sizeof(T),
                                       cudaMemcpyDefault, stream.get()));
    synchronize();
    return values;
  }
  std::byte* random_bytes(int64_t bytes, uint32_t seed) {
    std::byte* const data = allocate<std::byte>(bytes);
    cuda::queue_random(stream, data, bytes, seed);
    return data;
  }
  void synchronize() { ONECARD_CUDA_CHECK(cudaStreamSynchronize(stream.get())); }

  cuda::Stream stream;
  Exec exec;

 private:
  struct Work {
    std::string name;
    double bytes = 0;  // read from memory a call
    double flops = 0;
    double error = 0;
    double most_error = 0;  // beyond this the result is wrong
    std::string note;
  };

  int64_t scratch_bytes() const { return options_.quick ? int64_t{1} << 30 : int64_t{6} << 30; }
  bool wanted(const std::string& name) const {
    return options_.only.empty() || name.find(options_.only) != std::string::npos;
  }
  /// Replays a graph of `call(i)` for i in [0, calls) and adds the entry.
  template <typename Call>
  void time(const Work& work, int64_t calls, const Call& call);
  void measure_ceilings();

  exl3::MatrixView random_matrix(int64_t in, int64_t out, int bits, uint32_t seed);
  std::vector<float> exact_product(const exl3::MatrixView& device, std::span<const float> x);
  void bench_linear(int64_t in, int64_t out, int bits, std::span<const int64_t> rows);
  void bench_reconstruct();
  void bench_experts();
  void bench_row_ops();
  void bench_index();
  void bench_decode_step(int64_t rows);

  KernelBenchOptions options_;
  cudaDeviceProp properties_{};
  cuda::DeviceBlock scratch_;
  std::vector<cuda::DeviceBlock> blocks_;
  double read_gb_s_ = 0, tflop_s_ = 0;
  json::Value entries_ = json::Value::array();
};

template <typename Call>
void Bench::time(const Work& work, int64_t calls, const Call& call) {
  const cuda::Graph graph = cuda::Graph::record(stream.get(), [&] {
    for (int64_t i = 0; i < calls; ++i) call(i);
  });
  for (int warm = 0; warm < 2; ++warm) graph.launch(stream.get());
  synchronize();
  std::vector<double> us;
  cuda::Event begin(cuda::Event::Timing::kOn), end(cuda::Event::Timing::kOn);
  for (int i = 0; i < options_.repetitions; ++i) {
    begin.record(stream);
    graph.launch(stream.get());
    end.record(stream);
    end.wait();
    us.push_back(double(end.microseconds_since(begin)) / double(calls));
  }
  std::sort(us.begin(), us.end());
  const double median = us[us.size() / 2];
  json::Value entry = json::Value::object();
  entry.set("name", json::Value::string(work.name));
  json::Value times = json::Value::object();
  times.set("min", json::Value::real(us.front()));
  times.set("median", json::Value::real(median));
  times.set("max", json::Value::real(us.back()));
  entry.set("us", times);
  entry.set("calls", json::Value::integer(calls));
  entry.set("error", json::Value::real(std::isfinite(work.error) ? work.error : 1e30));
  entry.set("checked", json::Value::boolean(work.error <= work.most_error));
  double share = 0;
  if (work.bytes > 0) {
    entry.set("bytes", json::Value::real(work.bytes));
    entry.set("gb_s", json::Value::real(work.bytes / median * 1e-3));
    share = std::max(share, work.bytes / median * 1e-3 / read_gb_s_);
  }
  if (work.flops > 0) {
    entry.set("tflop_s", json::Value::real(work.flops / median * 1e-6));
    share = std::max(share, work.flops / median * 1e-6 / tflop_s_);
  }
  entry.set("share_of_ceiling", json::Value::real(share));
  if (!work.note.empty()) entry.set("note", json::Value::string(work.note));
  if (options_.progress) options_.progress(entry);
  entries_.items().push_back(std::move(entry));
}

void Bench::measure_ceilings() {
  const int64_t bytes = int64_t{2} << 30;
  const std::byte* const data = random_bytes(bytes, 1);
  auto* const sink = allocate<uint32_t>(4);
  const int num = properties_.multiProcessorCount;
  cuda::Event begin(cuda::Event::Timing::kOn), end(cuda::Event::Timing::kOn);
  const auto best = [&](const auto& queue) {
    double us = INFINITY;
    for (int i = 0; i < 5; ++i) {
      begin.record(stream);
      queue();
      end.record(stream);
      end.wait();
      us = std::min(us, double(end.microseconds_since(begin)));
    }
    return us;
  };
  read_gb_s_ =
      double(bytes) * 1e-3 / best([&] { cuda::queue_read(stream, data, bytes, sink, num); });
  double flops = 0;
  const double us = best(
      [&] { flops = cuda::queue_products(stream, 4000, reinterpret_cast<float*>(sink), num); });
  tflop_s_ = flops / us * 1e-6;
  blocks_.clear();
}

exl3::MatrixView Bench::random_matrix(int64_t in, int64_t out, int bits, uint32_t seed) {
  exl3::MatrixView matrix;
  matrix.in_features = in;
  matrix.out_features = out;
  matrix.bits = bits;
  matrix.layout = exl3::Layout::kBand;
  matrix.group_stride_bytes = exl3::group_bytes(in, out, bits, exl3::Layout::kBand);
  matrix.data = random_bytes(out / exl3::kGroupDim * matrix.group_stride_bytes + 64, seed);
  const auto scales = [&](int64_t count, float size) -> std::span<const uint16_t> {
    std::mt19937 random(seed + unsigned(count));
    std::vector<uint16_t> values;
    for (int64_t i = 0; i < count; ++i)
      values.push_back(
          f32_to_f16((random() & 1 ? size : -size) * (0.7f + float(random() % 600) / 1000)));
    return {upload(values), size_t(count)};
  };
  matrix.suh = scales(in, 1 / std::sqrt(float(in)));
  matrix.svh = scales(out, 1);
  return matrix;
}

ops::LinearWeight weight_of(const exl3::MatrixView& matrix) {
  ops::LinearWeight weight;
  weight.format = ops::LinearWeight::Format::kExl3;
  weight.in_features = matrix.in_features;
  weight.out_features = matrix.out_features;
  weight.exl3 = matrix;
  return weight;
}

// On the CPU's plain path, from a copy of the matrix.
std::vector<float> Bench::exact_product(const exl3::MatrixView& device, std::span<const float> x) {
  const int64_t groups = device.layout == exl3::Layout::kBand
                             ? device.out_features / exl3::kGroupDim
                             : device.in_features / exl3::kGroupDim;
  exl3::MatrixView host = device;
  const std::vector<std::byte> tiles = download(
      device.data,
      (groups - 1) * device.group_stride_bytes +
          exl3::group_bytes(device.in_features, device.out_features, device.bits, device.layout));
  const std::vector<uint16_t> suh = download(device.suh.data(), device.in_features);
  const std::vector<uint16_t> svh = download(device.svh.data(), device.out_features);
  host.data = tiles.data();
  host.suh = suh;
  host.svh = svh;
  std::vector<float> out(size_t(device.out_features));
  ops::linear({}, {x.data(), 1, device.in_features}, weight_of(host),
              {out.data(), 1, device.out_features});
  return out;
}

void Bench::bench_linear(int64_t in, int64_t out, int bits, std::span<const int64_t> row_counts) {
  const std::string shape = "exl3 K=" + std::to_string(bits) + " [" + std::to_string(in) + "x" +
                            std::to_string(out) + "]";
  if (!wanted(shape)) return;
  const double bytes = double(in * out * bits) / 8 + 2.0 * double(in + out);
  const int64_t copies = std::max<int64_t>(8, int64_t(double(kColdBytes) / bytes));
  std::vector<ops::LinearWeight> weights;
  for (int64_t i = 0; i < copies; ++i)
    weights.push_back(weight_of(random_matrix(in, out, bits, uint32_t(i + 1))));
  const int64_t most_rows = *std::max_element(row_counts.begin(), row_counts.end());
  const std::vector<float> x = random_values(most_rows * in, 1);
  float* const device_x = upload(x);
  auto* const y = allocate<float>(most_rows * out);
  for (const int64_t rows : row_counts) {
    const View<const float> input(device_x, rows, in);
    const View<float> output(y, rows, out);
    ops::linear(exec, input, weights[0], output);
    const std::vector<float> got = download(y + (rows - 1) * out, out);
    const std::vector<float> want =
        exact_product(weights[0].exl3, std::span(x).subspan(size_t((rows - 1) * in), size_t(in)));
    time({shape + " M=" + std::to_string(rows), bytes, 2.0 * double(rows * in * out),
          relative_error(got, want), 5e-4, ""},
         copies, [&](int64_t i) { ops::linear(exec, input, weights[size_t(i)], output); });
  }
  blocks_.clear();
}

void Bench::bench_reconstruct() {
  const std::string name = "reconstruct K=3 [5120x2304] to fp16";
  if (!wanted(name)) return;
  std::vector<exl3::MatrixView> matrices;
  for (uint32_t i = 0; i < 32; ++i) matrices.push_back(random_matrix(5120, 2304, 3, i));
  auto* const out = allocate<uint16_t>(32 * int64_t{5120} * 2304);
  const auto run = [&](int64_t i) {
    ops::exl3_reconstruct_inner(exec, matrices[size_t(i)], {out + i * 5120 * 2304, 2304, 5120});
  };
  run(0);
  // The product with the decoded matrix is checked by the linear entries; here: no state is lost.
  const std::vector<uint16_t> got = download(out, 5120 * 2304);
  double sum = 0, squares = 0;
  for (const uint16_t bits : got) {
    const double value = f16_to_f32(bits);
    sum += value;
    squares += value * value;
  }
  const double count = double(got.size());
  const double deviation = std::sqrt(squares / count - sum / count * (sum / count));
  time({name, 5120.0 * 2304 * (3.0 / 8 + 2), 0, std::fabs(deviation - 1.00031), 0.002,
        "bytes read and written"},
       32, run);
  blocks_.clear();
}

void Bench::bench_experts() {
  const std::string base = "experts 5120/2304 K=3 top-6";
  if (!wanted(base)) return;
  const exl3::ExpertLayout layout(kHidden, kIntermediate, 3, 3, 3);
  const int64_t most_experts = options_.quick ? 96 : kNumExperts;
  const int64_t record = layout.record_bytes();
  std::byte* const records = random_bytes(most_experts * record, 7);
  // Scales of one kind for every expert, as the records hold them.
  std::vector<uint16_t> scales;
  std::mt19937 random(3);
  for (int m = 0; m < 3; ++m) {
    const int64_t in = m < 2 ? kHidden : kIntermediate, out = m < 2 ? kIntermediate : kHidden;
    for (int64_t i = 0; i < in + out; ++i)
      scales.push_back(
          f32_to_f16((random() & 1 ? 1.0f : -1.0f) * (i < in ? 1 / std::sqrt(float(in)) : 1.0f)));
  }
  std::vector<exl3::ExpertView> views;
  for (int64_t e = 0; e < most_experts; ++e) {
    views.push_back(layout.view(records + e * record, exl3::Codebook::kMul1));
    ONECARD_CUDA_CHECK(cudaMemcpyAsync(records + e * record + layout.scales_offset(), scales.data(),
                                       scales.size() * 2, cudaMemcpyDefault, stream.get()));
  }
  synchronize();
  ops::RoutedExperts experts;
  experts.hidden_size = kHidden;
  experts.intermediate_size = kIntermediate;
  const std::byte* const table = upload(ops::routed_experts_table(views, experts.instance));

  const double expert_bytes = double(layout.num_units() * layout.unit_bytes());
  const double row_flops = 6.0 * double(kHidden * kIntermediate);
  std::vector<float> want;
  // `pool` experts are used; each call takes the next ones, so that calls find them cold.
  const auto entry = [&](const std::string& name, int64_t tokens, int64_t pool, int64_t calls,
                         double distinct) {
    experts.table = table;
    experts.num_experts = pool;
    const std::vector<float> x = random_values(tokens * kHidden, 1);
    const std::vector<float> weights(size_t(tokens * kExpertsPerToken), 0.25f);
    float* const device_x = upload(x);
    float* const device_weights = upload(weights);
    auto* const out = allocate<float>(tokens * kHidden);
    std::vector<int32_t*> ids;
    std::vector<int32_t> first_ids;
    for (int64_t i = 0; i < calls; ++i) {
      std::vector<int32_t> chosen;
      for (int64_t c = 0; c < tokens * kExpertsPerToken; ++c)
        chosen.push_back(int32_t((i * tokens * kExpertsPerToken + c) % pool));
      if (i == 0) first_ids = chosen;
      ids.push_back(upload(chosen));
    }
    const auto run = [&](int64_t i) {
      ops::routed_experts_add(exec, experts, {device_x, tokens, kHidden},
                              {ids[size_t(i)], tokens, kExpertsPerToken},
                              {device_weights, tokens, kExpertsPerToken}, {out, tokens, kHidden});
    };
    ONECARD_CUDA_CHECK(cudaMemsetAsync(out, 0, size_t(tokens * kHidden) * 4, stream.get()));
    run(0);
    const std::vector<float> got = download(out, kHidden);  // of the first token
    // The first token is the same in every entry.
    const bool known = !want.empty();
    want.resize(size_t(kHidden), 0.0f);
    for (int64_t k = 0; !known && k < kExpertsPerToken; ++k) {
      const exl3::ExpertView& view = views[size_t(first_ids[size_t(k)])];
      const std::span<const float> row(x.data(), size_t(kHidden));
      std::vector<float> gate = exact_product(view.gate, row), up = exact_product(view.up, row);
      const View<float> g(gate.data(), 1, kIntermediate);
      ops::swiglu({}, g, {up.data(), 1, kIntermediate}, {weights.data(), 1}, 10, g);
      const std::vector<float> down = exact_product(view.down, gate);
      for (size_t c = 0; c < want.size(); ++c) want[c] += down[c];
    }
    time({base + ", " + name, distinct * expert_bytes,
          row_flops * double(tokens * kExpertsPerToken), relative_error(got, want), 1.5e-3,
          std::to_string(int64_t(distinct)) + " distinct experts a call"},
         calls, run);
  };
  for (const int64_t tokens : {1, 2, 4, 8})
    entry(std::to_string(tokens) + (tokens == 1 ? " token" : " tokens, distinct"), tokens, 96,
          std::max<int64_t>(2, 16 / tokens), double(tokens * kExpertsPerToken));
  entry("64 tokens over 96", 64, 96, 2, 96);
  if (!options_.quick) entry("16384 tokens over 384", 16384, kNumExperts, 1, double(kNumExperts));
  blocks_.clear();
}

void Bench::bench_row_ops() {
  if (!wanted("row ops")) return;
  constexpr int64_t kSites = 64;  // copies, so that parameters are cold
  const int64_t width = (2 + kStreams) * kStreams, cols = kStreams * kHidden;
  const std::vector<float> x = random_values(cols, 1), fn = random_values(width * cols, 2, 0.02f);
  std::vector<const float*> fns;
  for (int64_t i = 0; i < kSites; ++i) fns.push_back(upload(fn));
  const std::vector<float> base = random_values(width, 3), scale{1, 1, 1};
  float* const dx = upload(x);
  float* const dbase = upload(base);
  float* const dscale = upload(scale);
  auto* const coefficients = allocate<float>(kStreams * (2 + kStreams));
  const ops::HcCoefficients out{{coefficients, 1, kStreams},
                                {coefficients + kStreams, 1, kStreams},
                                {coefficients + 2 * kStreams, 1, kStreams * kStreams}};
  const auto hc = [&](int64_t i) {
    const ops::HcSite site{
        {fns[size_t(i)], width, cols}, {dbase, size_t(width)}, {dscale, 3}, 20, 1e-6f, 1e-20f};
    ops::hc_coefficients(exec, {dx, 1, cols}, site, out);
  };
  hc(0);
  std::vector<float> want(size_t(kStreams * (2 + kStreams)));
  ops::hc_coefficients({}, {x.data(), 1, cols},
                       {{fn.data(), width, cols}, base, scale, 20, 1e-6f, 1e-20f},
                       {{want.data(), 1, kStreams},
                        {want.data() + kStreams, 1, kStreams},
                        {want.data() + 2 * kStreams, 1, kStreams * kStreams}});
  time({"row ops: hc_coefficients, 1 row", double(width * cols * 4), 0,
        relative_error(download(coefficients, int64_t(want.size())), want), 1e-5, ""},
       kSites, hc);

  // Attention of one decoded token: a full window and 512 selected of 4096 groups.
  const auto packed = [&](ops::KvFormat format, int64_t rows, unsigned seed) {
    const std::vector<float> values = random_values(rows * kHeadDim, seed);
    const int64_t bytes = ops::kv_row_bytes(format, kHeadDim);
    std::vector<std::byte> host(size_t(rows * bytes));
    ops::pack_kv_rows({}, {values.data(), rows, kHeadDim}, {host.data(), bytes, kHeadDim, format});
    return host;
  };
  constexpr auto kFp8 = ops::KvFormat::kFp8Block32, kFp4 = ops::KvFormat::kFp4Block16;
  constexpr int64_t kGroups = 4096;
  const auto ring = packed(kFp8, kWindow, 5), chunk = packed(kFp8, 1, 6),
             global = packed(kFp4, kGroups, 7);
  std::vector<int32_t> ids, counts{int32_t(kTopK)};
  for (int64_t k = 0; k < kTopK; ++k) ids.push_back(int32_t(k * (kGroups / kTopK) + k % 5));
  const std::vector<float> q = random_values(kHeads * kHeadDim, 8),
                           sinks = random_values(kHeads, 9);
  const auto keys = [&](const std::byte* r, const std::byte* c, const std::byte* g) {
    ops::AttentionKeys all;
    all.ring = {r, ops::kv_row_bytes(kFp8, kHeadDim), kHeadDim, kFp8};
    all.num_ring_rows = kWindow;
    all.chunk = {c, ops::kv_row_bytes(kFp8, kHeadDim), kHeadDim, kFp8};
    all.chunk_begin = 1000;
    all.window = kWindow;
    all.global = {g, ops::kv_row_bytes(kFp4, kHeadDim), kHeadDim, kFp4};
    return all;
  };
  std::vector<float> heads(q.size());
  ops::IndexLists lists{{ids.data(), 1, kTopK}, counts};
  ops::attention({}, {q.data(), 1, kHeads * kHeadDim}, 1000,
                 keys(ring.data(), chunk.data(), global.data()), &lists, sinks,
                 {heads.data(), 1, kHeads * kHeadDim});
  float* const dq = upload(q);
  float* const dsinks = upload(sinks);
  auto* const dheads = allocate<float>(kHeads * kHeadDim);
  const ops::AttentionKeys device_keys = keys(upload(ring), upload(chunk), upload(global));
  ops::IndexLists device_lists{{upload(ids), 1, kTopK}, {upload(counts), 1}};
  const auto attend = [&](int64_t) {
    ops::attention(exec, {dq, 1, kHeads * kHeadDim}, 1000, device_keys, &device_lists,
                   {dsinks, size_t(kHeads)}, {dheads, 1, kHeads * kHeadDim});
  };
  attend(0);
  time({"row ops: attention, 1 row, 128 + 512 keys", 0,
        4.0 * double(kHeads * kHeadDim * (kWindow + kTopK)),
        relative_error(download(dheads, kHeads * kHeadDim), heads), 1e-5, "f32, not tensor cores"},
       20, attend);
  blocks_.clear();
}

void Bench::bench_index() {
  if (!wanted("index")) return;
  constexpr auto kFormat = ops::KvFormat::kFp4Block32;
  const int64_t bytes = ops::kv_row_bytes(kFormat, kIndexDim);
  for (const int64_t groups : {int64_t{262144}, int64_t{1048576}}) {
    // A few thousand different keys, repeated: making them is not what is measured.
    constexpr int64_t kDistinct = 8192;
    const std::vector<float> values = random_values(kDistinct * kIndexDim, 1);
    std::vector<std::byte> distinct(size_t(kDistinct * bytes));
    ops::pack_kv_rows({}, {values.data(), kDistinct, kIndexDim},
                      {distinct.data(), bytes, kIndexDim, kFormat});
    auto* const keys = allocate<std::byte>(groups * bytes);
    for (int64_t begin = 0; begin < groups; begin += kDistinct)
      ONECARD_CUDA_CHECK(cudaMemcpyAsync(keys + begin * bytes, distinct.data(), distinct.size(),
                                         cudaMemcpyDefault, stream.get()));
    std::vector<float> q = random_values(kIndexHeads * kIndexDim, 2);
    ops::fake_quantise({}, kFormat, kIndexDim, {q.data(), 1, kIndexHeads * kIndexDim});
    const std::vector<float> w = random_values(kIndexHeads, 3);
    float* const dq = upload(q);
    float* const dw = upload(w);
    auto* const scores = allocate<float>(groups);
    const int64_t* const visible = upload(std::vector<int64_t>{groups});
    const auto score = [&](int64_t) {
      ops::indexer_scores(exec, {dq, 1, kIndexHeads * kIndexDim}, {dw, 1, kIndexHeads},
                          {keys, bytes, kIndexDim, kFormat}, {visible, 1}, nullptr, 8,
                          {scores, 1, groups});
    };
    score(0);
    std::vector<float> want(size_t(kDistinct), 0.0f);
    const std::vector<int64_t> all{kDistinct};
    ops::indexer_scores({}, {q.data(), 1, kIndexHeads * kIndexDim}, {w.data(), 1, kIndexHeads},
                        {distinct.data(), bytes, kIndexDim, kFormat}, all, nullptr, 8,
                        {want.data(), 1, kDistinct});
    const std::string size = std::to_string(groups) + " groups";
    time({"index scores, 1 row, " + size, double(groups * bytes),
          2.0 * double(groups * kIndexHeads * kIndexDim),
          relative_error(download(scores + groups - kDistinct, kDistinct), want), 1e-5, ""},
         8, score);

    // Selection among scores of their own, against a full sort.
    const std::vector<float> random = random_values(groups, 4);
    float* const drandom = upload(random);
    auto* const ids = allocate<int32_t>(kTopK);
    auto* const count = allocate<int32_t>(1);
    const auto select = [&](int64_t) {
      ops::select_top_k(exec, {drandom, 1, groups}, {visible, 1}, {{ids, 1, kTopK}, {count, 1}});
    };
    select(0);
    std::vector<int32_t> order(static_cast<size_t>(groups));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return random[size_t(a)] > random[size_t(b)]; });
    order.resize(size_t(kTopK));
    std::sort(order.begin(), order.end());
    time({"index top-512 of " + size, double(groups * 4), 0,
          download(ids, kTopK) == order ? 0.0 : 1.0, 0, "against a full sort"},
         8, select);
    blocks_.clear();
  }
}

// Everything of a decode step but the routed experts and the n-gram memory, at full geometry: 40
// layers of weights of their own at 5 bits, head at 6. Indexers run at the context below.
void Bench::bench_decode_step(int64_t rows) {
  const std::string name = "decode step without experts, " + std::to_string(rows) +
                           (rows == 1 ? " sequence" : " sequences") + ", 32k context";
  if (!wanted(name)) return;
  constexpr int64_t kContext = 32768, kExperts = kNumExperts;
  const int64_t all_heads = kHeads * kHeadDim, cols = kStreams * kHidden;
  const int64_t width = (2 + kStreams) * kStreams;
  struct Layer {
    ops::LinearWeight wq_a, wq_b, wkv, wo_a[kOutGroups], wo_b, w1, w3, w2, gate;
    ops::LinearWeight index_q;  // of the layers that select
    const float* fn[2];
  };
  uint32_t seed = 1;
  double bytes = 0;
  const auto matrix = [&](int64_t in, int64_t out, int bits) {
    bytes += double(in * out * bits) / 8;
    return weight_of(random_matrix(in, out, bits, seed++));
  };
  const auto values = [&](int64_t count, float size) {
    auto* const data = upload(random_values(count, seed++, size));
    return static_cast<const float*>(data);
  };
  const float* const fn_values = values(width * cols, 0.02f);
  const float* const gate_values = values(kExperts * kHidden, 0.02f);
  const auto copy = [&](const float* from, int64_t count) {
    auto* const to = allocate<float>(count);
    ONECARD_CUDA_CHECK(
        cudaMemcpyAsync(to, from, size_t(count) * 4, cudaMemcpyDefault, stream.get()));
    bytes += double(count) * 4;
    return static_cast<const float*>(to);
  };
  const auto selects = [](int64_t l) {
    return l == 2 || l == 8 || l == 14 || (l >= 20 && l % 4 == 0);
  };
  std::vector<Layer> layers(kLayers);
  for (int64_t l = 0; l < kLayers; ++l) {
    Layer& layer = layers[size_t(l)];
    layer.wq_a = matrix(kHidden, kQueryRank, 5);
    layer.wq_b = matrix(kQueryRank, all_heads, 5);
    layer.wkv = matrix(kHidden, kHeadDim, 5);
    for (ops::LinearWeight& group : layer.wo_a) group = matrix(all_heads / kOutGroups, kOutRank, 5);
    layer.wo_b = matrix(kOutGroups * kOutRank, kHidden, 5);
    layer.w1 = matrix(kHidden, kIntermediate, 5);
    layer.w3 = matrix(kHidden, kIntermediate, 5);
    layer.w2 = matrix(kIntermediate, kHidden, 5);
    if (selects(l)) layer.index_q = matrix(kQueryRank, kIndexHeads * kIndexDim, 5);
    layer.fn[0] = copy(fn_values, width * cols);
    layer.fn[1] = copy(fn_values, width * cols);
    layer.gate.in_features = kHidden;
    layer.gate.out_features = kExperts;
    layer.gate.data = copy(gate_values, kExperts * kHidden);
  }
  const ops::LinearWeight head = matrix(kHidden, kVocab, 6);
  ops::LinearWeight index_weights;
  index_weights.in_features = kHidden;
  index_weights.out_features = kIndexHeads;
  index_weights.data = values(kIndexHeads * kHidden, 0.02f);

  const auto device_floats = [&](int64_t count) { return allocate<float>(count); };
  const std::span<const float> norm(values(kHidden, 1), size_t(kHidden));
  const std::span<const float> rank_norm(values(kQueryRank, 1), size_t(kQueryRank));
  const std::span<const float> kv_norm(values(kHeadDim, 1), size_t(kHeadDim));
  const std::span<const float> sinks(values(kHeads, 1), size_t(kHeads));
  const std::span<const float> base(values(width, 1), size_t(width));
  const std::span<const float> scale(values(3, 1), 3);
  const std::span<const float> bias(values(kExperts, 0.05f), size_t(kExperts));
  const View<const float> angles(values(rows * kRotary, 0.7f), rows, kRotary);
  const View<float> x(device_floats(rows * cols), rows, cols);
  const View<float> u(device_floats(rows * kHidden), rows, kHidden);
  const View<float> y(device_floats(rows * kHidden), rows, kHidden);
  const View<float> q_latent(device_floats(rows * kQueryRank), rows, kQueryRank);
  const View<float> q(device_floats(rows * all_heads), rows, all_heads);
  const View<float> heads(device_floats(rows * all_heads), rows, all_heads);
  const View<float> kv(device_floats(rows * kHeadDim), rows, kHeadDim);
  const View<float> o_latent(device_floats(rows * kOutGroups * kOutRank), rows,
                             kOutGroups * kOutRank);
  const View<float> gate(device_floats(rows * kIntermediate), rows, kIntermediate);
  const View<float> up(device_floats(rows * kIntermediate), rows, kIntermediate);
  const View<float> logits(device_floats(rows * kVocab), rows, kVocab);
  const View<float> router(device_floats(rows * kExperts), rows, kExperts);
  const View<float> expert_weights(device_floats(rows * kExpertsPerToken), rows, kExpertsPerToken);
  const View<int32_t> expert_ids(allocate<int32_t>(rows * kExpertsPerToken), rows,
                                 kExpertsPerToken);
  const View<float> index_q(device_floats(rows * kIndexHeads * kIndexDim), rows,
                            kIndexHeads * kIndexDim);
  const View<float> index_w(device_floats(rows * kIndexHeads), rows, kIndexHeads);
  const View<float> scores(device_floats(rows * kContext), rows, kContext);
  const View<int32_t> ids(allocate<int32_t>(rows * kTopK), rows, kTopK);
  auto* const counts = allocate<int32_t>(rows);
  const auto coefficients = [&] {
    return ops::HcCoefficients{
        {device_floats(rows * kStreams), rows, kStreams},
        {device_floats(rows * kStreams), rows, kStreams},
        {device_floats(rows * kStreams * kStreams), rows, kStreams * kStreams}};
  };
  const ops::HcCoefficients attn_hc = coefficients(), ffn_hc = coefficients();
  const int64_t* const visible = upload(std::vector<int64_t>(size_t(rows), kContext / 2));
  constexpr auto kFp8 = ops::KvFormat::kFp8Block32, kFp4 = ops::KvFormat::kFp4Block16,
                 kIndexFormat = ops::KvFormat::kFp4Block32;
  const int64_t window_bytes = ops::kv_row_bytes(kFp8, kHeadDim),
                group_bytes = ops::kv_row_bytes(kFp4, kHeadDim),
                index_bytes = ops::kv_row_bytes(kIndexFormat, kIndexDim);
  const auto packed = [&](ops::KvFormat format, int64_t count, int64_t dim) {
    const std::vector<float> some = random_values(count * dim, seed++);
    float* const on_device = upload(some);
    const int64_t row_bytes = ops::kv_row_bytes(format, dim);
    auto* const to = allocate<std::byte>(count * row_bytes);
    ops::pack_kv_rows(exec, {on_device, count, dim}, {to, row_bytes, dim, format});
    return to;
  };
  const std::byte* const ring = packed(kFp8, kWindow, kHeadDim);
  const std::byte* const groups = packed(kFp4, 4096, kHeadDim);
  const std::byte* const index_keys = packed(kIndexFormat, kContext, kIndexDim);
  auto* const window_rows = allocate<std::byte>(rows * window_bytes);
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < rows * kTopK; ++i) chosen.push_back(int32_t(i % kTopK * 8));
  const View<int32_t> selected(upload(chosen), rows, kTopK);
  auto* const selected_counts = upload(std::vector<int32_t>(size_t(rows), int32_t(kTopK)));
  ONECARD_CUDA_CHECK(cudaMemcpyAsync(x.data, values(rows * cols, 1), size_t(rows * cols) * 4,
                                     cudaMemcpyDefault, stream.get()));
  ONECARD_CUDA_CHECK(cudaMemcpyAsync(attn_hc.pre.data, values(rows * kStreams, 1),
                                     size_t(rows * kStreams) * 4, cudaMemcpyDefault, stream.get()));
  synchronize();

  const auto run_layer = [&](int64_t l) {
    const Layer& layer = layers[size_t(l)];
    const auto site = [&](int idx) {
      return ops::HcSite{{layer.fn[idx], width, cols}, base, scale, 20, 1e-6f, 1e-20f};
    };
    ops::hc_collapse_norm(exec, x, attn_hc.pre, norm, 1e-20f, u);
    const ops::LinearCall inputs[] = {{u, &layer.wq_a, q_latent}, {u, &layer.wkv, kv}};
    ops::linear_each(exec, inputs);
    ops::rms_norm(exec, kv, kv_norm, 1e-20f, kv);
    ops::rope(exec, kv, kHeadDim, angles);
    ops::pack_kv_rows(exec, kv, {window_rows, window_bytes, kHeadDim, kFp8});
    ops::hc_coefficients(exec, x, site(0), attn_hc);
    ops::rms_norm(exec, q_latent, rank_norm, 1e-20f, q_latent);
    ops::linear(exec, q_latent, layer.wq_b, q);
    ops::rope(exec, q, kHeadDim, angles);
    if (selects(l)) {
      ops::linear(exec, q_latent, layer.index_q, index_q);
      ops::rope(exec, index_q, kIndexDim, angles);
      ops::fake_quantise(exec, kIndexFormat, kIndexDim, index_q);
      ops::linear(exec, u, index_weights, index_w);
      ops::indexer_scores(exec, index_q, index_w,
                          {index_keys, index_bytes, kIndexDim, kIndexFormat},
                          {visible, size_t(rows)}, nullptr, 8, scores);
      ops::select_top_k(exec, scores, {visible, size_t(rows)}, {ids, {counts, size_t(rows)}});
    }
    for (int64_t r = 0; r < rows; ++r) {
      ops::AttentionKeys keys;
      keys.ring = {ring, window_bytes, kHeadDim, kFp8};
      keys.num_ring_rows = kWindow;
      keys.chunk = {window_rows + r * window_bytes, window_bytes, kHeadDim, kFp8};
      keys.chunk_begin = kContext;
      keys.window = kWindow;
      keys.global = {groups, group_bytes, kHeadDim, kFp4};
      const ops::IndexLists lists{selected.rows_between(r, r + 1), {selected_counts + r, 1}};
      ops::attention(exec, q.rows_between(r, r + 1), kContext, keys, l < 2 ? nullptr : &lists,
                     sinks, heads.rows_between(r, r + 1));
    }
    ops::rope(exec, heads, kHeadDim, angles, true);
    ops::LinearCall outputs[kOutGroups];
    for (int64_t g = 0; g < kOutGroups; ++g) {
      const int64_t in = all_heads / kOutGroups;
      outputs[g] = {heads.cols_between(g * in, (g + 1) * in), &layer.wo_a[g],
                    o_latent.cols_between(g * kOutRank, (g + 1) * kOutRank)};
    }
    ops::linear_each(exec, outputs);
    ops::linear(exec, o_latent, layer.wo_b, y);
    ops::hc_expand(exec, y, attn_hc.post, attn_hc.comb, x);
    ops::hc_coefficients(exec, x, site(1), ffn_hc);
    ops::hc_collapse_norm(exec, x, attn_hc.pre, norm, 1e-20f, u);
    ops::linear(exec, u, layer.gate, router);
    ops::route(exec, router, bias, {}, expert_ids, expert_weights);
    const ops::LinearCall shared[] = {{u, &layer.w1, gate}, {u, &layer.w3, up}};
    ops::linear_each(exec, shared);
    ops::swiglu(exec, gate, up, {}, 10, gate);
    ops::linear(exec, gate, layer.w2, y);
    ops::hc_expand(exec, y, ffn_hc.post, ffn_hc.comb, x);
  };
  const auto step = [&](int64_t) {
    for (int64_t l = 0; l < kLayers; ++l) run_layer(l);
    ops::hc_collapse_norm(exec, x, ffn_hc.pre, norm, 1e-20f, u);
    ops::linear(exec, u, head, logits);
  };
  step(0);
  const std::vector<float> some = download(logits.data, 1000);
  const bool finite =
      std::all_of(some.begin(), some.end(), [](float value) { return std::isfinite(value); });
  time({name, bytes, 0, finite ? 0.0 : 1.0, 0, "finite logits; each op is checked by itself"}, 1,
       step);
  blocks_.clear();
}

json::Value Bench::run() {
  measure_ceilings();
  constexpr int64_t kRows[] = {1, 2, 4, 8, 16, 64}, kFewer[] = {1, 4, 16}, kFewest[] = {1, 4};
  bench_linear(5120, 2304, 3, kRows);
  bench_linear(2304, 5120, 3, kFewer);
  bench_linear(5120, 2304, 5, kFewest);
  bench_linear(2304, 5120, 5, kFewest);
  bench_linear(5120, 2304, 4, kFewest);
  bench_linear(5120, 2304, 6, kFewest);
  bench_reconstruct();
  bench_row_ops();
  bench_index();
  bench_experts();
  if (!options_.quick) {
    bench_decode_step(1);
    bench_decode_step(4);
  }
  json::Value report = json::Value::object();
  json::Value device = json::Value::object();
  device.set("name", json::Value::string(properties_.name));
  device.set("multiprocessors", json::Value::integer(properties_.multiProcessorCount));
  device.set("l2_bytes", json::Value::integer(properties_.l2CacheSize));
  device.set("compute_capability", json::Value::string(std::to_string(properties_.major) + "." +
                                                       std::to_string(properties_.minor)));
  report.set("device", device);
  json::Value ceilings = json::Value::object();
  ceilings.set("read_gb_s", json::Value::real(read_gb_s_));
  ceilings.set("fp16_tflop_s", json::Value::real(tflop_s_));
  report.set("ceilings", ceilings);
  report.set("repetitions", json::Value::integer(options_.repetitions));
  report.set("entries", entries_);
  return report;
}

}  // namespace

json::Value bench_cuda_kernels(const KernelBenchOptions& options) {
  int count = 0;
  ONECARD_CUDA_CHECK(cudaGetDeviceCount(&count));
  require(count > 0, ErrorCode::kDevice, "bench kernels: no CUDA device");
  return Bench(options).run();
}

}  // namespace onecard::cli
