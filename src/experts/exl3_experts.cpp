#include "experts/exl3_experts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <vector>

#include "base/error.h"
#include "base/spin_barrier.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace onecard::experts {
namespace {

using ops::Exl3Kernel;

constexpr int64_t kBlock = exl3::kGroupDim;
constexpr int64_t kBlocksPerPiece = 10;  // of gate's and up's inputs: 60 KiB at K = 3
constexpr int64_t kPiecesOfDown = 4;     // of a unit's outputs: as large, at 5120
constexpr int64_t kDecodeRows = 8;  // up to here a pass over a unit costs little more than one row
constexpr int64_t kPrefillRows =
    96;  // of one item: activations of a block fit the first-level cache
constexpr int64_t kMaxPartialFloats = int64_t{4} << 20;  // of one wave of units
constexpr int64_t kMaxWaveRows = 2048;                   // of one wave of bands
constexpr int64_t kProductsWorthThreads = 1 << 18;

// At least `size` elements; grows and stays.
template <typename T>
T* grown(Buffer<T>& buffer, int64_t size) {
  if (buffer.size() < size) buffer = Buffer<T>(size);
  return buffer.data();
}

// Some rows of one expert: what one pass over its tiles serves.
struct Item {
  const exl3::ExpertView* expert;
  std::span<const int64_t> rows;
  std::span<const float> weights;
  const Exl3Kernel* kernel[3];  // gate, up, down
  int64_t first_row;            // among the rows of the wave's items

  int64_t num_rows() const { return int64_t(rows.size()); }
  const exl3::MatrixView& matrix(int m) const {
    return m == 0 ? expert->gate : m == 1 ? expert->up : expert->down;
  }
};

// Activations of one matrix's input for every row of a wave: an item's blocks one after another,
// the rows of a block together.
struct Inputs {
  Buffer<std::byte> bytes;
  Buffer<float> scales;
  Buffer<float> offsets;

  void grow(int64_t row_blocks) {
    grown(bytes, row_blocks * ops::kExl3MaxActivationBytes);
    grown(scales, row_blocks);
    grown(offsets, row_blocks);
  }
};

}  // namespace

struct Exl3Experts::State {
  explicit State(const Options& options_in)
      : options(options_in),
        hidden_blocks(options.hidden_size / kBlock),
        num_units(options.intermediate_size / kBlock),
        num_pieces((hidden_blocks + kBlocksPerPiece - 1) / kBlocksPerPiece) {}

  void forward_add(const Exec& exec, View<const float> x, std::span<const Exl3ExpertRows> work,
                   View<float> out);
  void sort_rows_by_token();

  // ---- the steps of every schedule; `item` rows [0, num_rows)

  void plan_item(const Exec& exec, const Exl3ExpertRows& work, int64_t begin, int64_t end);
  void prepare_block(const Item& item, int m, int64_t row, int64_t block, View<const float> x);
  void multiply(const Item& item, int m, int64_t in_block, int64_t out_tile, int64_t num_strips,
                float* sums, int64_t sums_stride);
  void gate_or_up_piece(const Item& item, int m, int64_t unit, int64_t piece, float* sums);
  void middle(const Item& item, int64_t unit, float* gate, float* up);
  float input_offset(const Item& item, int m, int64_t row) const;
  float hidden_offset(const Item& item, int64_t row) const;

  // ---- few rows an expert: units

  void run_units(const Exec& exec, View<const float> x, View<float> out);
  void unit_worker(int thread, int num_threads, View<const float> x, View<float> out);
  void whole_unit(const Item& item, int64_t unit);
  void small_gate_or_up(int64_t ticket);
  void small_down(int64_t ticket);
  void add_units(int64_t token_idx, int64_t block, View<float> out);
  float* partial(const Item& item, int64_t unit) {
    return partials.data() +
           (item.first_row * num_units + unit * item.num_rows()) * options.hidden_size;
  }
  void down(const Item& item, int64_t unit, int64_t first_tile, int64_t num_tiles);

  // ---- many rows an expert: bands

  void run_bands(const Exec& exec, View<const float> x, View<float> out);

  int64_t position(const Item& item, int64_t blocks, int64_t block, int64_t row) const {
    return item.first_row * blocks + block * item.num_rows() + row;
  }
  // The items of a wave may have kernels with activations of other sizes: each begins where the
  // largest would.
  static std::byte* bytes(Inputs& in, const Item& item, int64_t blocks, int64_t block, int64_t row,
                          const Exl3Kernel& kernel) {
    return in.bytes.data() + item.first_row * blocks * ops::kExl3MaxActivationBytes +
           (block * item.num_rows() + row) * kernel.activation_bytes;
  }

  Options options;
  const int64_t hidden_blocks;
  const int64_t num_units;
  const int64_t num_pieces;

  const ops::Exl3Steps* steps = nullptr;
  std::vector<Item> items;  // of the current wave
  int64_t wave_rows = 0;
  Inputs inputs[2];  // of gate and up, [item][hidden_blocks][rows]
  Inputs hidden;     // of down, [item][num_units][rows]

  struct TokenRow {
    int64_t token, item, row;
  };
  std::vector<TokenRow> token_rows;  // by token, then by item
  std::vector<size_t> token_begin;   // of each token's run in token_rows, and its end

  Buffer<float> partials;    // [item][num_units][rows][hidden]
  Buffer<float> piece_sums;  // [small unit][gate, up][piece][rows][128]
  struct alignas(64) SmallUnit {
    std::atomic<int> pieces_left{0};
    std::atomic<bool> ready{false};
  };
  std::unique_ptr<SmallUnit[]> small_units;
  int64_t small_units_capacity = 0;
  int64_t num_small_units = 0;
  int64_t first_small_unit = 0;
  alignas(64) std::atomic<int64_t> next_unit{0};
  alignas(64) std::atomic<int64_t> next_gate_or_up{0};
  alignas(64) std::atomic<int64_t> next_down{0};
  SpinBarrier barrier;

  Buffer<float> outputs;  // bands: [rows of the wave][hidden]
};

// ---- steps

void Exl3Experts::State::plan_item(const Exec& exec, const Exl3ExpertRows& work, int64_t begin,
                                   int64_t end) {
  Item item{.expert = &work.expert,
            .rows = work.rows.subspan(size_t(begin), size_t(end - begin)),
            .weights = work.weights.subspan(size_t(begin), size_t(end - begin)),
            .kernel = {},
            .first_row = wave_rows};
  for (int m = 0; m < 3; ++m) {
    const exl3::MatrixView& w = item.matrix(m);
    item.kernel[m] =
        &ops::exl3_fastest(exec.isa, options.precision, w.codebook, w.bits).for_rows(end - begin);
  }
  items.push_back(item);
  wave_rows += end - begin;
}

void Exl3Experts::State::prepare_block(const Item& item, int m, int64_t row, int64_t block,
                                       View<const float> x) {
  const int64_t at = position(item, hidden_blocks, block, row);
  const Exl3Kernel& kernel = *item.kernel[m];
  steps->prepare(kernel, x.row(item.rows[size_t(row)]) + block * kBlock,
                 item.matrix(m).suh.data() + block * kBlock,
                 bytes(inputs[m], item, hidden_blocks, block, row, kernel),
                 inputs[m].scales.data() + at, inputs[m].offsets.data() + at);
}

void Exl3Experts::State::multiply(const Item& item, int m, int64_t in_block, int64_t out_tile,
                                  int64_t num_strips, float* sums, int64_t sums_stride) {
  const exl3::MatrixView& w = item.matrix(m);
  const Exl3Kernel& kernel = *item.kernel[m];
  Inputs& in = m == 2 ? hidden : inputs[m];
  const int64_t blocks = m == 2 ? num_units : hidden_blocks;
  const std::byte* const tiles = w.tile(8 * in_block, out_tile);
  // The strip after the last tile of a band is never read.
  const int64_t strip_stride =
      w.layout == exl3::Layout::kNative ? exl3::tile_bytes(w.bits) : 8 * exl3::tile_bytes(w.bits);
  kernel.multiply({.tiles = tiles,
                   .tile_stride_bytes = w.tile(8 * in_block + 1, out_tile) - tiles,
                   .strip_stride_bytes = strip_stride,
                   .num_strips = int(num_strips),
                   .prefetch_bytes = w.layout == exl3::Layout::kNative ? 0 : options.prefetch_bytes,
                   .rows = int(item.num_rows()),
                   .activations = bytes(in, item, blocks, in_block, 0, kernel),
                   .scales = in.scales.data() + position(item, blocks, in_block, 0),
                   .sums = sums,
                   .sums_stride = sums_stride});
}

// sums: [rows][128], overwritten.
void Exl3Experts::State::gate_or_up_piece(const Item& item, int m, int64_t unit, int64_t piece,
                                          float* sums) {
  std::fill_n(sums, item.num_rows() * kBlock, 0.0f);
  const int64_t end = std::min(hidden_blocks, (piece + 1) * kBlocksPerPiece);
  for (int64_t b = piece * kBlocksPerPiece; b < end; ++b)
    multiply(item, m, b, 8 * unit, 8, sums, kBlock);
}

float Exl3Experts::State::input_offset(const Item& item, int m, int64_t row) const {
  float sum = 0;
  for (int64_t b = 0; b < hidden_blocks; ++b)
    sum += inputs[m].offsets[position(item, hidden_blocks, b, row)];
  return sum;
}

float Exl3Experts::State::hidden_offset(const Item& item, int64_t row) const {
  float sum = 0;
  for (int64_t u = 0; u < num_units; ++u) sum += hidden.offsets[position(item, num_units, u, row)];
  return sum;
}

// gate, up: [rows][128] sums without their offsets; used as scratch.
void Exl3Experts::State::middle(const Item& item, int64_t unit, float* gate, float* up) {
  const exl3::MatrixView* const matrices[2] = {&item.expert->gate, &item.expert->up};
  for (int64_t r = 0; r < item.num_rows(); ++r) {
    float* const sums[2] = {gate + r * kBlock, up + r * kBlock};
    for (int m = 0; m < 2; ++m) {
      const float offset = input_offset(item, m, r);
      for (int64_t c = 0; c < kBlock; ++c) sums[m][c] += offset;
      steps->finish(sums[m], ops::exl3_gain(item.kernel[m]->precision),
                    matrices[m]->svh.data() + unit * kBlock, sums[m]);
    }
    steps->swiglu(sums[0], sums[1], options.swiglu_limit, item.weights[size_t(r)], sums[0]);
    const int64_t at = position(item, num_units, unit, r);
    const Exl3Kernel& kernel = *item.kernel[2];
    steps->prepare(kernel, sums[0], item.expert->down.suh.data() + unit * kBlock,
                   bytes(hidden, item, num_units, unit, r, kernel), hidden.scales.data() + at,
                   hidden.offsets.data() + at);
  }
}

// ---- units

// A part of the unit's outputs: [rows][first_tile * 16 ..) of its partial sums.
void Exl3Experts::State::down(const Item& item, int64_t unit, int64_t first_tile,
                              int64_t num_tiles) {
  float* const sums = partial(item, unit) + first_tile * exl3::kTileDim;
  for (int64_t r = 0; r < item.num_rows(); ++r)
    std::fill_n(sums + r * options.hidden_size, num_tiles * exl3::kTileDim, 0.0f);
  multiply(item, 2, unit, first_tile, num_tiles, sums, options.hidden_size);
}

void Exl3Experts::State::whole_unit(const Item& item, int64_t unit) {
  alignas(64) float sums[2][kDecodeRows * kBlock];
  alignas(64) float piece_sum[kDecodeRows * kBlock];
  const int64_t size = item.num_rows() * kBlock;
  for (int m = 0; m < 2; ++m) {
    gate_or_up_piece(item, m, unit, 0, sums[m]);
    for (int64_t piece = 1; piece < num_pieces; ++piece) {
      gate_or_up_piece(item, m, unit, piece, piece_sum);
      steps->add(sums[m], piece_sum, size, sums[m]);
    }
  }
  middle(item, unit, sums[0], sums[1]);
  down(item, unit, 0, options.hidden_size / exl3::kTileDim);
}

// One piece of gate or up of a small unit; whoever finishes its last piece also does the middle.
void Exl3Experts::State::small_gate_or_up(int64_t ticket) {
  const int64_t small = ticket / (2 * num_pieces), part = ticket % (2 * num_pieces);
  const int64_t unit = first_small_unit + small;
  const Item& item = items[size_t(unit / num_units)];
  const int64_t size = item.num_rows() * kBlock;
  float* const first = piece_sums.data() + small * 2 * num_pieces * kDecodeRows * kBlock;
  const auto sums = [&](int64_t idx) { return first + idx * kDecodeRows * kBlock; };
  gate_or_up_piece(item, int(part / num_pieces), unit % num_units, part % num_pieces, sums(part));
  if (small_units[size_t(small)].pieces_left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  for (int64_t m = 0; m < 2; ++m)
    for (int64_t piece = 1; piece < num_pieces; ++piece)
      steps->add(sums(m * num_pieces), sums(m * num_pieces + piece), size, sums(m * num_pieces));
  middle(item, unit % num_units, sums(0), sums(num_pieces));
  small_units[size_t(small)].ready.store(true, std::memory_order_release);
}

void Exl3Experts::State::small_down(int64_t ticket) {
  const int64_t small = ticket / kPiecesOfDown, piece = ticket % kPiecesOfDown;
  const int64_t unit = first_small_unit + small;
  const int64_t tiles = options.hidden_size / exl3::kTileDim;
  const int64_t begin = tiles * piece / kPiecesOfDown, end = tiles * (piece + 1) / kPiecesOfDown;
  // Every piece of gate and up has been taken before the first of down, by threads that are at work
  // on it.
  spin_until([&] { return small_units[size_t(small)].ready.load(std::memory_order_acquire); });
  down(items[size_t(unit / num_units)], unit % num_units, begin, end - begin);
}

void Exl3Experts::State::add_units(int64_t token_idx, int64_t block, View<float> out) {
  const int64_t column = block * kBlock;
  const int64_t stride = options.hidden_size;
  alignas(64) float sums[kBlock];
  for (size_t i = token_begin[size_t(token_idx)]; i < token_begin[size_t(token_idx) + 1]; ++i) {
    const TokenRow& entry = token_rows[i];
    const Item& item = items[size_t(entry.item)];
    const int64_t unit_stride = item.num_rows() * stride;
    const float* p = partial(item, 0) + entry.row * stride + column;
    std::copy_n(p, kBlock, sums);
    for (int64_t u = 1; u < num_units; ++u) {
      p += unit_stride;
      // Other threads wrote these, 20 KiB apart: no hardware prefetcher follows.
      if (u + 2 < num_units)
        for (int64_t c = 0; c < kBlock; c += 16) __builtin_prefetch(p + 2 * unit_stride + c);
      steps->add(sums, p, kBlock, sums);
    }
    const float offset = hidden_offset(item, entry.row);
    for (float& sum : sums) sum += offset;
    steps->finish(sums, ops::exl3_gain(item.kernel[2]->precision),
                  item.expert->down.svh.data() + column, sums);
    float* const y = out.row(entry.token) + column;
    steps->add(y, sums, kBlock, y);
  }
}

void Exl3Experts::State::unit_worker(int thread, int num_threads, View<const float> x,
                                     View<float> out) {
  const int64_t row_blocks = 2 * wave_rows * hidden_blocks;
  int64_t at = row_blocks * thread / num_threads;
  const int64_t end = row_blocks * (thread + 1) / num_threads;
  for (const Item& item : items) {
    const int64_t first = 2 * item.first_row * hidden_blocks;
    const int64_t size = 2 * item.num_rows() * hidden_blocks;
    for (; at < end && at - first < size; ++at) {
      const int64_t i = at - first, block = i % hidden_blocks, row = i / hidden_blocks / 2;
      prepare_block(item, int(i / hidden_blocks % 2), row, block, x);
    }
  }
  barrier.wait();
  for (int64_t u; (u = next_unit.fetch_add(1, std::memory_order_relaxed)) < first_small_unit;)
    whole_unit(items[size_t(u / num_units)], u % num_units);
  const int64_t gate_and_up = num_small_units * 2 * num_pieces;
  for (int64_t t; (t = next_gate_or_up.fetch_add(1, std::memory_order_relaxed)) < gate_and_up;)
    small_gate_or_up(t);
  const int64_t downs = num_small_units * kPiecesOfDown;
  for (int64_t t; (t = next_down.fetch_add(1, std::memory_order_relaxed)) < downs;) small_down(t);
  barrier.wait();
  const int64_t sums = (int64_t(token_begin.size()) - 1) * hidden_blocks;
  for (int64_t i = sums * thread / num_threads; i < sums * (thread + 1) / num_threads; ++i)
    add_units(i / hidden_blocks, i % hidden_blocks, out);
}

void Exl3Experts::State::run_units(const Exec& exec, View<const float> x, View<float> out) {
  const int64_t products = wave_rows * options.hidden_size * options.intermediate_size * 3;
  const int num_threads = exec.pool == nullptr || (products < kProductsWorthThreads && products > 0)
                              ? 1
                              : exec.pool->num_threads();

  // Full rounds of whole units, one a thread; the rest, and at least half a round of it since
  // threads are never equally fast, in small pieces.
  const int64_t units = int64_t(items.size()) * num_units;
  first_small_unit = std::max<int64_t>(0, units - num_threads / 2) / num_threads * num_threads;
  num_small_units = units - first_small_unit;
  if (num_small_units > small_units_capacity) {
    small_units = std::make_unique<SmallUnit[]>(size_t(num_small_units));
    small_units_capacity = num_small_units;
  }
  for (int64_t i = 0; i < num_small_units; ++i) {
    small_units[size_t(i)].pieces_left.store(int(2 * num_pieces), std::memory_order_relaxed);
    small_units[size_t(i)].ready.store(false, std::memory_order_relaxed);
  }
  grown(piece_sums, num_small_units * 2 * num_pieces * kDecodeRows * kBlock);
  grown(partials, wave_rows * num_units * options.hidden_size);
  next_unit.store(0, std::memory_order_relaxed);
  next_gate_or_up.store(0, std::memory_order_relaxed);
  next_down.store(0, std::memory_order_relaxed);
  barrier.reset(num_threads);
  // The workers wait for each other. A pool runs as many tasks at once as it has threads, so each
  // takes one.
  const auto worker = [&](int64_t task, int) { unit_worker(int(task), num_threads, x, out); };
  if (num_threads == 1)
    worker(0, 0);
  else
    exec.pool->run(num_threads, std::ref(worker));
}

// ---- bands

void Exl3Experts::State::run_bands(const Exec& exec, View<const float> x, View<float> out) {
  const auto for_tasks = [&](int64_t num_tasks, const auto& task) {
    const auto run = [&task](int64_t task_idx, int) { task(task_idx); };
    if (exec.pool == nullptr)
      for (int64_t i = 0; i < num_tasks; ++i) task(i);
    else
      exec.pool->run(num_tasks, std::ref(run));
  };
  const auto num_items = int64_t(items.size());
  grown(outputs, wave_rows * options.hidden_size);

  for_tasks(num_items * hidden_blocks, [&](int64_t task) {
    const Item& item = items[size_t(task / hidden_blocks)];
    for (int m = 0; m < 2; ++m)
      for (int64_t r = 0; r < item.num_rows(); ++r)
        prepare_block(item, m, r, task % hidden_blocks, x);
  });
  for_tasks(num_items * num_units, [&](int64_t task) {
    const Item& item = items[size_t(task / num_units)];
    alignas(64) float sums[2][kPrefillRows * kBlock];
    alignas(64) float piece_sum[kPrefillRows * kBlock];
    for (int m = 0; m < 2; ++m) {
      gate_or_up_piece(item, m, task % num_units, 0, sums[m]);
      for (int64_t piece = 1; piece < num_pieces; ++piece) {
        gate_or_up_piece(item, m, task % num_units, piece, piece_sum);
        steps->add(sums[m], piece_sum, item.num_rows() * kBlock, sums[m]);
      }
    }
    middle(item, task % num_units, sums[0], sums[1]);
  });
  for_tasks(num_items * hidden_blocks, [&](int64_t task) {
    const Item& item = items[size_t(task / hidden_blocks)];
    const int64_t column = task % hidden_blocks * kBlock;
    alignas(64) float sums[kPrefillRows * kBlock];
    std::fill_n(sums, item.num_rows() * kBlock, 0.0f);
    for (int64_t u = 0; u < num_units; ++u)
      multiply(item, 2, u, column / exl3::kTileDim, 8, sums, kBlock);
    for (int64_t r = 0; r < item.num_rows(); ++r) {
      float* const row = sums + r * kBlock;
      const float offset = hidden_offset(item, r);
      for (int64_t c = 0; c < kBlock; ++c) row[c] += offset;
      steps->finish(row, ops::exl3_gain(item.kernel[2]->precision),
                    item.expert->down.svh.data() + column,
                    outputs.data() + (item.first_row + r) * options.hidden_size + column);
    }
  });
  for_tasks(int64_t(token_begin.size()) - 1, [&](int64_t token_idx) {
    for (size_t i = token_begin[size_t(token_idx)]; i < token_begin[size_t(token_idx) + 1]; ++i) {
      const TokenRow& entry = token_rows[i];
      const float* const y =
          outputs.data() + (items[size_t(entry.item)].first_row + entry.row) * options.hidden_size;
      steps->add(out.row(entry.token), y, options.hidden_size, out.row(entry.token));
    }
  });
}

// ---- waves

void Exl3Experts::State::sort_rows_by_token() {
  token_rows.clear();
  for (int64_t i = 0; i < int64_t(items.size()); ++i)
    for (int64_t r = 0; r < items[size_t(i)].num_rows(); ++r)
      token_rows.push_back({items[size_t(i)].rows[size_t(r)], i, r});
  std::stable_sort(token_rows.begin(), token_rows.end(),
                   [](const TokenRow& a, const TokenRow& b) { return a.token < b.token; });
  token_begin.assign(1, 0);
  for (size_t i = 1; i <= token_rows.size(); ++i)
    if (i == token_rows.size() || token_rows[i].token != token_rows[i - 1].token)
      token_begin.push_back(i);
}

void Exl3Experts::State::forward_add(const Exec& exec, View<const float> x,
                                     std::span<const Exl3ExpertRows> work, View<float> out) {
  steps = &ops::exl3_steps(exec.isa);
  const bool units = std::all_of(work.begin(), work.end(), [](const Exl3ExpertRows& w) {
    return int64_t(w.rows.size()) <= kDecodeRows;
  });
  const int64_t item_rows = units ? kDecodeRows : kPrefillRows;
  const int64_t wave_limit =
      units ? std::max(kDecodeRows, kMaxPartialFloats / (num_units * options.hidden_size))
            : kMaxWaveRows;
  const auto run_wave = [&] {
    for (int m = 0; m < 2; ++m) inputs[m].grow(wave_rows * hidden_blocks);
    hidden.grow(wave_rows * num_units);
    sort_rows_by_token();
    if (units)
      run_units(exec, x, out);
    else
      run_bands(exec, x, out);
    items.clear();
    wave_rows = 0;
  };
  items.clear();
  wave_rows = 0;
  for (const Exl3ExpertRows& w : work) {
    const auto num_rows = int64_t(w.rows.size());
    for (int64_t begin = 0; begin < num_rows; begin += item_rows) {
      const int64_t end = std::min(num_rows, begin + item_rows);
      if (wave_rows + end - begin > wave_limit) run_wave();
      plan_item(exec, w, begin, end);
    }
  }
  run_wave();
}

Exl3Experts::Exl3Experts(const Options& options) {
  require(options.hidden_size > 0 && options.hidden_size % kBlock == 0 &&
              options.intermediate_size > 0 && options.intermediate_size % kBlock == 0,
          ErrorCode::kInvalidArgument,
          "exl3 experts: hidden and intermediate sizes must be positive multiples of 128");
  state_ = std::make_unique<State>(options);
}
Exl3Experts::~Exl3Experts() = default;

void Exl3Experts::forward_add(const Exec& exec, View<const float> x,
                              std::span<const Exl3ExpertRows> work, View<float> out) {
  require(x.same_shape(out) && x.cols == state_->options.hidden_size, ErrorCode::kInvalidArgument,
          "exl3 experts: x and out must be [tokens, hidden]");
  for (const Exl3ExpertRows& w : work)
    require(w.rows.size() == w.weights.size() &&
                w.expert.gate.in_features == state_->options.hidden_size &&
                w.expert.gate.out_features == state_->options.intermediate_size &&
                w.expert.up.in_features == state_->options.hidden_size &&
                w.expert.up.out_features == state_->options.intermediate_size &&
                w.expert.down.in_features == state_->options.intermediate_size &&
                w.expert.down.out_features == state_->options.hidden_size,
            ErrorCode::kInvalidArgument,
            "exl3 experts: an expert of another shape, or rows without weights");
  state_->forward_add(exec, x, work, out);
}

const Exl3Experts::Options& Exl3Experts::options() const { return state_->options; }
void Exl3Experts::set_prefetch_bytes(int bytes) { state_->options.prefetch_bytes = bytes; }
void Exl3Experts::set_precision(ops::Exl3Precision precision) {
  state_->options.precision = precision;
}

}  // namespace onecard::experts
