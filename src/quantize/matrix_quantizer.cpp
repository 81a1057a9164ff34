#include "quantize/matrix_quantizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "base/error.h"
#include "base/thread_pool.h"
#include "quant/exl3/codebook.h"
#include "quant/exl3/hadamard.h"
#include "quant/exl3/tile.h"
#include "quantize/ldl.h"
#include "quantize/tile_encoder.h"
#include "tensor/dtype.h"

namespace onecard::quantize {
namespace {

using exl3::kGroupDim;
using exl3::kTileDim;
using exl3::kTileWeights;

// The rotated weights have this rms before the scale search: the standard deviation of the format's
// first codebook, which the searched scale g is relative to.
constexpr double kRotatedRms = 1.24371088;
// Added to the Hessian's diagonal, relative to its mean: inputs that the calibration hardly shows
// still matter.
constexpr double kDamping = 0.025;

void for_tasks(const Exec& exec, int64_t num_tasks, const std::function<void(int64_t, int)>& task) {
  if (exec.pool != nullptr) return exec.pool->run(num_tasks, task);
  for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
}

// A matrix [rows, cols] of our own, row-major.
struct Matrix {
  Matrix(int64_t rows_in, int64_t cols_in)
      : rows(rows_in), cols(cols_in), data(size_t(rows_in * cols_in)) {}
  float* row(int64_t r) { return data.data() + r * cols; }
  const float* row(int64_t r) const { return data.data() + r * cols; }
  int64_t rows;
  int64_t cols;
  std::vector<float> data;
};

std::vector<double> random_signs(std::mt19937_64& random, int64_t count) {
  std::vector<double> signs(static_cast<size_t>(count));
  for (double& sign : signs) sign = random() >> 63 ? -1.0 : 1.0;
  return signs;
}

// Hadamard over the rows' index: blocks of 128 rows, each column on its own.
void hadamard_down(const Exec& exec, Matrix& x) {
  for_tasks(exec, x.rows / kGroupDim, [&](int64_t block, int) {
    std::array<float, kGroupDim> column;
    for (int64_t c = 0; c < x.cols; ++c) {
      for (int64_t r = 0; r < kGroupDim; ++r) column[size_t(r)] = x.row(block * kGroupDim + r)[c];
      exl3::hadamard(std::span<float>(column));
      for (int64_t r = 0; r < kGroupDim; ++r) x.row(block * kGroupDim + r)[c] = column[size_t(r)];
    }
  });
}

// Stream position t of the tile of rows 16a.. and columns 16b.. .
void gather_tile(const Matrix& x, int64_t a, int64_t b, float scale, float* stream) {
  for (int t = 0; t < kTileWeights; ++t)
    stream[t] =
        scale * x.row(a * kTileDim + exl3::stream_row(t))[b * kTileDim + exl3::stream_col(t)];
}

// One encoder a thread.
class Encoders {
 public:
  Encoders(const Exec& exec, exl3::Codebook codebook, int bits)
      : exec_(exec),
        bits_(bits),
        table_(std::make_shared<const TrellisTable>(codebook, bits)),
        encoders_(size_t(exec.pool != nullptr ? exec.pool->num_threads() : 1)) {}

  /// Encodes `num_tiles` tiles in pairs: get(i, stream) fills the targets of tile i, put(i,
  /// targets, states) takes the path. Both are called from any thread, once a tile.
  void run(int64_t num_tiles, const std::function<void(int64_t, float*)>& get,
           const std::function<void(int64_t, const float*, const uint16_t*)>& put) {
    for_tasks(exec_, (num_tiles + 1) / 2, [&](int64_t pair, int thread) {
      std::unique_ptr<TileEncoder>& encoder = encoders_[size_t(thread)];
      if (!encoder) encoder = std::make_unique<TileEncoder>(table_, exec_.isa);
      std::array<float, 2 * kTileWeights> targets;
      std::array<uint16_t, 2 * kTileWeights> states;
      const int64_t count = std::min<int64_t>(2, num_tiles - 2 * pair);
      for (int64_t i = 0; i < count; ++i) get(2 * pair + i, targets.data() + i * kTileWeights);
      encoder->encode(std::span(targets).first(size_t(count * kTileWeights)),
                      std::span(states).first(size_t(count * kTileWeights)));
      for (int64_t i = 0; i < count; ++i)
        put(2 * pair + i, targets.data() + i * kTileWeights, states.data() + i * kTileWeights);
    });
  }

  int bits() const { return bits_; }

 private:
  const Exec& exec_;
  int bits_;
  std::shared_ptr<const TrellisTable> table_;
  std::vector<std::unique_ptr<TileEncoder>> encoders_;
};

struct TileIndex {
  int64_t a;
  int64_t b;
};

// Tiles along a wrapped diagonal, so that all rows and columns are hit, and the loudest and
// quietest one. Small matrices give fewer: the search should not cost more than the encoding.
std::vector<TileIndex> sample_tiles(const Matrix& x) {
  const int64_t rows = x.rows / kTileDim, cols = x.cols / kTileDim;
  const int64_t diagonal = std::max(rows, cols);
  const int64_t wanted = std::clamp<int64_t>(rows * cols / 24, 6, 3 * diagonal);
  std::vector<TileIndex> sample;
  for (int64_t i = 0; i < wanted; ++i) {
    const int64_t step = i * 3 * diagonal / wanted;
    sample.push_back({step % rows, (step + step / diagonal) % cols});
  }
  TileIndex loudest{0, 0}, quietest{0, 0};
  double most = -1, least = std::numeric_limits<double>::infinity();
  std::array<float, kTileWeights> tile;
  for (int64_t a = 0; a < rows; ++a)
    for (int64_t b = 0; b < cols; ++b) {
      gather_tile(x, a, b, 1, tile.data());
      double energy = 0;
      for (const float value : tile) energy += double(value) * value;
      if (energy > most) most = energy, loudest = {a, b};
      if (energy < least) least = energy, quietest = {a, b};
    }
  sample.push_back(loudest);
  sample.push_back(quietest);
  return sample;
}

// The scale g that is best for Gaussian weights of kRotatedRms: measured, by bits.
double gaussian_scale(exl3::Codebook codebook, int bits) {
  constexpr std::array<double, 8> kMul1{1.12, 1.00, 0.97, 0.95, 0.94, 0.92, 0.92, 0.90};
  const double spread = codebook == exl3::Codebook::kMul1 ? 1.0 : kRotatedRms;  // of its values
  return kMul1[size_t(bits - 1)] * spread / kRotatedRms;
}

// The scale g at which decode(g x) / g is nearest to x.
double search_scale(const Matrix& x, Encoders& encoders, exl3::Codebook codebook) {
  const std::vector<TileIndex> sample = sample_tiles(x);
  const float* const values = exl3::codebook_table(codebook);
  const auto error_at = [&](double g) {
    const auto count = int64_t(sample.size());
    std::vector<double> errors(sample.size());
    encoders.run(
        count,
        [&](int64_t i, float* stream) {
          const TileIndex at = sample[size_t(i)];
          gather_tile(x, at.a, at.b, float(g), stream);
        },
        [&](int64_t i, const float* targets, const uint16_t* states) {
          double sum = 0;
          for (int t = 0; t < kTileWeights; ++t) {
            const double error = (double(values[states[t]]) - double(targets[t])) / g;
            sum += error * error;
          }
          errors[size_t(i)] = sum;
        });
    double sum = 0;
    for (const double error : errors) sum += error;
    return sum / double(count);
  };
  // From the code's best scale for Gaussian weights, which rotated weights nearly are, downhill in
  // steps; then a parabola through the lowest three.
  constexpr double kStep = 0.075;
  constexpr int kMostSteps = 24;
  const double start = gaussian_scale(codebook, encoders.bits());
  std::map<int, double> errors;  // by step from `start`
  const auto error_of = [&](int step) {
    const double g = start + kStep * step;
    const auto [at, is_new] = errors.try_emplace(step, std::numeric_limits<double>::infinity());
    if (is_new && g > 0) at->second = error_at(g);
    return at->second;
  };
  int lowest = 0;
  for (int i = 0; i < kMostSteps; ++i) {
    const double here = error_of(lowest), below = error_of(lowest - 1),
                 above = error_of(lowest + 1);
    if (here <= below && here <= above) break;
    lowest += below < above ? -1 : 1;
  }
  const double left = error_of(lowest - 1) - error_of(lowest);
  const double right = error_of(lowest + 1) - error_of(lowest);
  const double shift =
      std::isfinite(left + right) && left + right > 0 ? 0.5 * (left - right) / (left + right) : 0;
  return start + kStep * (lowest + shift);
}

std::vector<double> round_scales(std::vector<double>& scales, std::vector<uint16_t>& stored) {
  stored.clear();
  std::vector<double> exact;
  for (double& scale : scales) {
    stored.push_back(f32_to_f16(float(scale)));
    exact.push_back(f16_to_f32(stored.back()));
  }
  return exact;
}

// X without the left rotation: W^T / sv, right Hadamard. [in, out]
Matrix right_rotated(const Exec& exec, View<const float> w, const std::vector<double>& sv) {
  Matrix x(w.cols, w.rows);
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t o = 0; o < x.cols; ++o)
      x.row(i)[o] = sv[size_t(o)] == 0 ? 0 : float(double(w.row(o)[i]) / sv[size_t(o)]);
  for_tasks(exec, x.rows,
            [&](int64_t i, int) { exl3::hadamard(std::span<float>(x.row(i), size_t(x.cols))); });
  return x;
}

Matrix left_rotated(const Exec& exec, Matrix x, const std::vector<double>& su) {
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t o = 0; o < x.cols; ++o) x.row(i)[o] = float(double(x.row(i)[o]) / su[size_t(i)]);
  hadamard_down(exec, x);
  return x;
}

// The Hessian in X's basis, damped: H diag(su) (Hessian + damping) diag(su) H. Empty when the
// calibration says nothing.
std::vector<double> rotated_hessian(std::span<const double> hessian, const std::vector<double>& su,
                                    double damping) {
  const auto n = int64_t(su.size());
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += hessian[size_t(i * n + i)] / double(n);
  if (!std::isfinite(mean) || mean < 1e-20) return {};
  std::vector<double> h(hessian.begin(), hessian.end());
  for (int64_t i = 0; i < n; ++i) {
    h[size_t(i * n + i)] += damping * mean;
    for (int64_t j = 0; j < n; ++j) h[size_t(i * n + j)] *= su[size_t(i)] * su[size_t(j)];
    exl3::hadamard(std::span<double>(h.data() + i * n, size_t(n)));
  }
  // The other side, through the transpose.
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < i; ++j) std::swap(h[size_t(i * n + j)], h[size_t(j * n + i)]);
  for (int64_t i = 0; i < n; ++i) exl3::hadamard(std::span<double>(h.data() + i * n, size_t(n)));
  return h;
}

// sum over columns c of m[:,c]^T h m[:,c]
double energy_under(const Exec& exec, const std::vector<double>& h, const Matrix& m) {
  const int64_t n = m.rows;
  std::vector<double> parts(static_cast<size_t>(n));
  for_tasks(exec, n, [&](int64_t i, int) {
    std::vector<double> sum(size_t(m.cols), 0.0);  // row i of h m
    for (int64_t j = 0; j < n; ++j) {
      const double weight = h[size_t(i * n + j)];
      const float* const row = m.row(j);
      for (int64_t c = 0; c < m.cols; ++c) sum[size_t(c)] += weight * double(row[c]);
    }
    double total = 0;
    for (int64_t c = 0; c < m.cols; ++c) total += sum[size_t(c)] * double(m.row(i)[c]);
    parts[size_t(i)] = total;
  });
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

// Encodes all tiles of x; with `l` (block LDL of the Hessian) the error of every block of 16 input
// rows goes into the targets of those before it. Returns the decoded matrix.
Matrix encode_matrix(const Exec& exec, const Matrix& x, const std::vector<float>& l,
                     Encoders& encoders, QuantizedMatrix& result) {
  const int64_t tile_cols = x.cols / kTileDim;
  const float* const values = exl3::codebook_table(result.codebook);
  Matrix decoded(x.rows, x.cols);
  Matrix error(x.rows, x.cols);  // X - Q of the blocks done
  Matrix target(kTileDim, x.cols);
  const int64_t words = 16 * result.bits;
  result.trellis.resize(size_t(x.rows / kTileDim * tile_cols * words));
  for (int64_t a = x.rows / kTileDim - 1; a >= 0; --a) {
    for_tasks(exec, l.empty() ? 1 : tile_cols, [&](int64_t task, int) {
      const int64_t begin = l.empty() ? 0 : task * kTileDim;
      const int64_t end = l.empty() ? x.cols : begin + kTileDim;
      for (int64_t r = 0; r < kTileDim; ++r)
        std::copy(x.row(a * kTileDim + r) + begin, x.row(a * kTileDim + r) + end,
                  target.row(r) + begin);
      if (l.empty()) return;
      for (int64_t j = (a + 1) * kTileDim; j < x.rows; ++j) {
        const float* const weights = l.data() + j * x.rows + a * kTileDim;
        const float* const source = error.row(j);
        for (int64_t r = 0; r < kTileDim; ++r)
          for (int64_t c = begin; c < end; ++c) target.row(r)[c] += weights[r] * source[c];
      }
    });
    encoders.run(
        tile_cols, [&](int64_t b, float* stream) { gather_tile(target, 0, b, 1, stream); },
        [&](int64_t b, const float*, const uint16_t* states) {
          exl3::pack_states(
              std::span<const uint16_t, kTileWeights>(states, size_t(kTileWeights)), result.bits,
              reinterpret_cast<std::byte*>(result.trellis.data() + (a * tile_cols + b) * words));
          for (int t = 0; t < kTileWeights; ++t) {
            const int64_t r = a * kTileDim + exl3::stream_row(t);
            const int64_t c = b * kTileDim + exl3::stream_col(t);
            decoded.row(r)[c] = values[states[t]];
            error.row(r)[c] = x.row(r)[c] - decoded.row(r)[c];
          }
        });
  }
  return decoded;
}

void check_weights(View<const float> w, std::span<const double> hessian) {
  if (w.rows <= 0 || w.rows % kGroupDim != 0 || w.cols <= 0 || w.cols % kGroupDim != 0)
    throw Error(ErrorCode::kInvalidArgument, "quantize: [" + std::to_string(w.rows) + ", " +
                                                 std::to_string(w.cols) +
                                                 "] is not a multiple of 128 both ways");
  require(hessian.empty() || int64_t(hessian.size()) == w.cols * w.cols,
          ErrorCode::kInvalidArgument, "quantize: the Hessian must be [in, in]");
  for (int64_t o = 0; o < w.rows; ++o)
    for (int64_t i = 0; i < w.cols; ++i)
      require(std::isfinite(w.row(o)[i]), ErrorCode::kInvalidArgument,
              "quantize: a weight is not finite");
}

}  // namespace

exl3::MatrixView QuantizedMatrix::view() const {
  exl3::MatrixView matrix;
  matrix.in_features = in_features;
  matrix.out_features = out_features;
  matrix.bits = bits;
  matrix.codebook = codebook;
  matrix.data = reinterpret_cast<const std::byte*>(trellis.data());
  matrix.suh = suh;
  matrix.svh = svh;
  return matrix;
}

uint64_t seed_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ uint8_t(c)) * 0x100000001b3u;
  return hash;
}

QuantizedMatrix quantize_matrix(const Exec& exec, View<const float> w,
                                std::span<const double> hessian, const MatrixOptions& options) {
  check_weights(w, hessian);
  QuantizedMatrix result;
  result.in_features = w.cols;
  result.out_features = w.rows;
  result.bits = options.bits;
  result.codebook = options.codebook;
  std::mt19937_64 random(options.seed);
  Encoders encoders(exec, options.codebook, options.bits);

  // Output scales: each column's rms over the mean of them; a column of zeros gets none.
  std::vector<double> sv = random_signs(random, w.rows);
  std::vector<double> rms(size_t(w.rows), 0.0);
  double mean = 0;
  for (int64_t o = 0; o < w.rows; ++o) {
    for (int64_t i = 0; i < w.cols; ++i) rms[size_t(o)] += double(w.row(o)[i]) * w.row(o)[i];
    rms[size_t(o)] = std::sqrt(rms[size_t(o)] / double(w.cols));
    mean += rms[size_t(o)] / double(w.rows);
  }
  for (int64_t o = 0; o < w.rows; ++o) sv[size_t(o)] *= mean > 0 ? rms[size_t(o)] / mean : 0;
  sv = round_scales(sv, result.svh);
  const Matrix half = right_rotated(exec, w, sv);

  // Input scales: each row's rms, so that X has the codebook's spread; then the searched scale.
  std::vector<double> su = random_signs(random, w.cols);
  double smallest = 0;  // for rows of zeros: any scale does
  for (const float value : half.data) smallest = std::max(smallest, std::fabs(double(value)));
  smallest = std::max(smallest * 1e-4, 1e-6);
  for (int64_t i = 0; i < half.rows; ++i) {
    double sum = 0;
    for (int64_t o = 0; o < half.cols; ++o) sum += double(half.row(i)[o]) * half.row(i)[o];
    su[size_t(i)] *= std::max(std::sqrt(sum / double(half.cols)), smallest) / kRotatedRms;
  }
  result.scale = search_scale(left_rotated(exec, half, su), encoders, options.codebook);
  for (double& scale : su) scale /= result.scale;
  su = round_scales(su, result.suh);
  const Matrix x = left_rotated(exec, half, su);

  std::vector<double> h;
  std::vector<float> l;
  if (!hessian.empty()) {
    h = rotated_hessian(hessian, su, kDamping);
    double damping = kDamping;
    for (int attempt = 0; options.error_feedback && !h.empty() && l.empty() && attempt < 10;
         ++attempt) {
      l = block_ldl(exec, h, x.rows, kTileDim);
      if (l.empty()) h = rotated_hessian(hessian, su, damping += 2 * kDamping);
    }
  }
  const Matrix decoded = encode_matrix(exec, x, l, encoders, result);
  Matrix error(x.rows, x.cols);
  double error_energy = 0, energy = 0;
  for (size_t i = 0; i < x.data.size(); ++i) {
    error.data[i] = x.data[i] - decoded.data[i];
    error_energy += double(error.data[i]) * error.data[i];
    energy += double(x.data[i]) * x.data[i];
  }
  result.relative_error = energy > 0 ? error_energy / energy : 0;
  if (!h.empty() && energy > 0)
    result.proxy_error = energy_under(exec, h, error) / energy_under(exec, h, x);
  return result;
}

}  // namespace onecard::quantize
