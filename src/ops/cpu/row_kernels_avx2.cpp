// AVX2 + FMA. Sums run over eight f32 lanes and a fixed number of accumulators. Nothing here may be
// called before dispatch, and no inline function of a shared header is used: it would be compiled
// with these flags for everyone.
#include <immintrin.h>

#include "ops/cpu/row_kernels.h"

namespace onecard::ops::cpu {
namespace {

inline float sum8(__m256 v) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

/// The sums of four vectors, in order.
inline __m128 sum8x4(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ab = _mm256_hadd_ps(a, b);
  const __m256 cd = _mm256_hadd_ps(c, d);
  const __m256 abcd = _mm256_hadd_ps(ab, cd);
  return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
}

/// The first n (< 8) floats, zeros behind them.
inline __m256i tail_mask(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), lane);
}

inline float dot_f32(const float* a, const float* b, int64_t n) {
  __m256 sum0 = _mm256_setzero_ps(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t c = 0;
  for (; c + 32 <= n; c += 32) {
    sum0 = _mm256_fmadd_ps(_mm256_loadu_ps(a + c), _mm256_loadu_ps(b + c), sum0);
    sum1 = _mm256_fmadd_ps(_mm256_loadu_ps(a + c + 8), _mm256_loadu_ps(b + c + 8), sum1);
    sum2 = _mm256_fmadd_ps(_mm256_loadu_ps(a + c + 16), _mm256_loadu_ps(b + c + 16), sum2);
    sum3 = _mm256_fmadd_ps(_mm256_loadu_ps(a + c + 24), _mm256_loadu_ps(b + c + 24), sum3);
  }
  for (; c + 8 <= n; c += 8)
    sum0 = _mm256_fmadd_ps(_mm256_loadu_ps(a + c), _mm256_loadu_ps(b + c), sum0);
  if (c < n) {
    const __m256i mask = tail_mask(n - c);
    sum1 = _mm256_fmadd_ps(_mm256_maskload_ps(a + c, mask), _mm256_maskload_ps(b + c, mask), sum1);
  }
  return sum8(_mm256_add_ps(_mm256_add_ps(sum0, sum1), _mm256_add_ps(sum2, sum3)));
}

/// sum[r][h] = rows[r] . heads[h] in eight lanes. A dot product is one chain of fused
/// multiply-adds, whatever block it is computed in.
template <int kRows, int kHeads>
inline void dot_block(const float* heads, int64_t head_stride, const float* rows,
                      int64_t row_stride, int64_t dim, __m256 (&sum)[kRows][kHeads]) {
  for (int r = 0; r < kRows; ++r)
    for (int h = 0; h < kHeads; ++h) sum[r][h] = _mm256_setzero_ps();
  const int64_t whole = dim / 8 * 8;
  for (int64_t c = 0; c < whole; c += 8) {
    __m256 row[kRows];
    for (int r = 0; r < kRows; ++r) row[r] = _mm256_loadu_ps(rows + r * row_stride + c);
    for (int h = 0; h < kHeads; ++h) {
      const __m256 head = _mm256_loadu_ps(heads + h * head_stride + c);
      for (int r = 0; r < kRows; ++r) sum[r][h] = _mm256_fmadd_ps(row[r], head, sum[r][h]);
    }
  }
  if (whole == dim) return;
  const __m256i mask = tail_mask(dim - whole);
  for (int h = 0; h < kHeads; ++h) {
    const __m256 head = _mm256_maskload_ps(heads + h * head_stride + whole, mask);
    for (int r = 0; r < kRows; ++r)
      sum[r][h] =
          _mm256_fmadd_ps(_mm256_maskload_ps(rows + r * row_stride + whole, mask), head, sum[r][h]);
  }
}

/// kW rows of w with kX rows of x.
template <int kW, int kX>
inline void dots_block(const float* w, int64_t num_outputs, const float* x, int64_t x_stride,
                       int64_t n, double* out) {
  __m256 sum[kW][kX];
  dot_block<kW, kX>(x, x_stride, w, n, n, sum);
  for (int r = 0; r < kW; ++r)
    for (int t = 0; t < kX; ++t) out[t * num_outputs + r] = sum8(sum[r][t]);
}

template <int kX>
void dots_of(const float* w, int64_t num_outputs, const float* x, int64_t x_stride, int64_t n,
             double* out) {
  constexpr int kW = kX == 4 ? 3 : 6;  // 12 or 6 sums: what the registers hold; 2 rows: 12
  int64_t o = 0;
  for (; o + kW <= num_outputs; o += kW)
    dots_block<kW, kX>(w + o * n, num_outputs, x, x_stride, n, out + o);
  for (; o < num_outputs; ++o) dots_block<1, kX>(w + o * n, num_outputs, x, x_stride, n, out + o);
}

void dots(const float* w, int64_t num_outputs, const float* x, int64_t x_stride, int64_t num_rows,
          int64_t n, double* out) {
  int64_t t = 0;
  for (; t + 4 <= num_rows; t += 4)
    dots_of<4>(w, num_outputs, x + t * x_stride, x_stride, n, out + t * num_outputs);
  for (; t + 2 <= num_rows; t += 2)  // w may come from far: once for both
    dots_of<2>(w, num_outputs, x + t * x_stride, x_stride, n, out + t * num_outputs);
  for (; t < num_rows; ++t)
    dots_of<1>(w, num_outputs, x + t * x_stride, x_stride, n, out + t * num_outputs);
}

double sum_squares(const float* x, int64_t n) { return dot_f32(x, x, n); }

double dot3(const float* x, const float* w, const float* y, int64_t n) {
  __m256 sum0 = _mm256_setzero_ps(), sum1 = sum0;
  int64_t c = 0;
  for (; c + 16 <= n; c += 16) {
    sum0 = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_loadu_ps(x + c), _mm256_loadu_ps(w + c)),
                           _mm256_loadu_ps(y + c), sum0);
    sum1 = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_loadu_ps(x + c + 8), _mm256_loadu_ps(w + c + 8)),
                           _mm256_loadu_ps(y + c + 8), sum1);
  }
  double sum = 0;
  for (; c < n; ++c) sum += double(x[c]) * w[c] * y[c];
  return sum + sum8(_mm256_add_ps(sum0, sum1));
}

void scale(const float* x, const float* w, float factor, int64_t n, float* out) {
  const __m256 f = _mm256_set1_ps(factor);
  int64_t c = 0;
  for (; c + 8 <= n; c += 8)
    _mm256_storeu_ps(
        out + c, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + c), f), _mm256_loadu_ps(w + c)));
  for (; c < n; ++c) out[c] = x[c] * factor * w[c];
}

void collapse(const float* x, const float* mix, int64_t num_streams, int64_t n, float* out) {
  int64_t c = 0;
  for (; c + 8 <= n; c += 8) {
    __m256 sum = _mm256_mul_ps(_mm256_set1_ps(mix[0]), _mm256_loadu_ps(x + c));
    for (int64_t j = 1; j < num_streams; ++j)
      sum = _mm256_fmadd_ps(_mm256_set1_ps(mix[j]), _mm256_loadu_ps(x + j * n + c), sum);
    _mm256_storeu_ps(out + c, sum);
  }
  for (; c < n; ++c) {
    float sum = 0;
    for (int64_t j = 0; j < num_streams; ++j) sum += mix[j] * x[j * n + c];
    out[c] = sum;
  }
}

template <int kStreams>
void expand_streams(const float* y, const float* post, const float* comb, int64_t n, float* x) {
  for (int64_t c = 0; c + 8 <= n; c += 8) {
    const __m256 value = _mm256_loadu_ps(y + c);
    __m256 in[kStreams];
    for (int j = 0; j < kStreams; ++j) in[j] = _mm256_loadu_ps(x + j * n + c);
    for (int k = 0; k < kStreams; ++k) {
      __m256 sum = _mm256_mul_ps(_mm256_broadcast_ss(post + k), value);
      for (int j = 0; j < kStreams; ++j)
        sum = _mm256_fmadd_ps(_mm256_broadcast_ss(comb + j * kStreams + k), in[j], sum);
      _mm256_storeu_ps(x + k * n + c, sum);
    }
  }
}

void expand(const float* y, const float* post, const float* comb, int64_t num_streams, int64_t n,
            float* x) {
  int64_t c = 0;
  if (num_streams == 4) {
    expand_streams<4>(y, post, comb, n, x);
    c = n / 8 * 8;
  }
  float mixed[8];
  for (; c < n; ++c) {
    for (int64_t k = 0; k < num_streams; ++k) {
      mixed[k] = post[k] * y[c];
      for (int64_t j = 0; j < num_streams; ++j)
        mixed[k] += comb[j * num_streams + k] * x[j * n + c];
    }
    for (int64_t k = 0; k < num_streams; ++k) x[k * n + c] = mixed[k];
  }
}

void add_scaled(float a, const float* y, int64_t n, float* x) {
  const __m256 factor = _mm256_set1_ps(a);
  int64_t c = 0;
  for (; c + 8 <= n; c += 8)
    _mm256_storeu_ps(x + c,
                     _mm256_fmadd_ps(factor, _mm256_loadu_ps(y + c), _mm256_loadu_ps(x + c)));
  for (; c < n; ++c) x[c] += a * y[c];
}

/// exp(x) to about 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, and a polynomial in r (minimax, as in
/// Moshier's Cephes). Below -87.3 the smallest normal number, above 88.3 the largest power.
inline __m256 exp8(__m256 x) {
  x = _mm256_max_ps(_mm256_min_ps(x, _mm256_set1_ps(88.3762626647949f)),
                    _mm256_set1_ps(-87.3365447505531f));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
}

void swiglu(const float* gate, const float* up, float weight, float limit, int64_t n, float* out) {
  const __m256 high = _mm256_set1_ps(limit), low = _mm256_set1_ps(-limit);
  const __m256 factor = _mm256_set1_ps(weight), one = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += 8) {
    const bool whole = i + 8 <= n;
    const __m256i mask = tail_mask(whole ? 8 : n - i);
    const __m256 a = _mm256_min_ps(_mm256_maskload_ps(gate + i, mask), high);
    const __m256 b = _mm256_max_ps(_mm256_min_ps(_mm256_maskload_ps(up + i, mask), high), low);
    const __m256 silu =
        _mm256_div_ps(a, _mm256_add_ps(one, exp8(_mm256_sub_ps(_mm256_setzero_ps(), a))));
    _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(_mm256_mul_ps(factor, silu), b));
  }
}

void rotate(float* x, const float* angles, float sign, int64_t num_pairs) {
  const __m256 flip = _mm256_set1_ps(sign);
  int64_t i = 0;
  for (; i + 4 <= num_pairs; i += 4) {
    const __m256 value = _mm256_loadu_ps(x + 2 * i);
    const __m256 angle = _mm256_loadu_ps(angles + 2 * i);
    const __m256 sine = _mm256_mul_ps(_mm256_movehdup_ps(angle), flip);
    const __m256 crossed = _mm256_mul_ps(_mm256_permute_ps(value, 0xb1), sine);
    _mm256_storeu_ps(x + 2 * i, _mm256_fmaddsub_ps(value, _mm256_moveldup_ps(angle), crossed));
  }
  for (; i < num_pairs; ++i) {
    const float even = x[2 * i], odd = x[2 * i + 1];
    const float cosine = angles[2 * i], sine = sign * angles[2 * i + 1];
    x[2 * i] = even * cosine - odd * sine;
    x[2 * i + 1] = even * sine + odd * cosine;
  }
}

inline float power_of_two(uint8_t e8m0) {  // 1..254: the scales that quantisers make
  const uint32_t bits = uint32_t(e8m0) << 23;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Eight e4m3 codes as f32 times 2^-120: sign, exponent and mantissa moved into place.
inline __m256 tiny_e4m3_8(__m128i codes) {
  const __m256i moved = _mm256_slli_epi32(_mm256_cvtepi8_epi32(codes), 20);
  return _mm256_castsi256_ps(_mm256_and_si256(moved, _mm256_set1_epi32(int(0x87f00000))));
}

/// 32 e4m3 codes with their scale.
inline void unpack_e4m3_32(const uint8_t* codes, uint8_t scale, float* out) {
  constexpr int kLargest = 254 - 120;  // of a scale that takes 2^120 along, as one power of two
  const bool joined = scale <= kLargest;
  const __m256 factor = _mm256_set1_ps(joined ? power_of_two(uint8_t(scale + 120)) : 0x1p120f);
  for (int64_t c = 0; c < 32; c += 8) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + c));
    _mm256_storeu_ps(out + c, _mm256_mul_ps(tiny_e4m3_8(eight), factor));
  }
  if (joined) return;
  for (int64_t c = 0; c < 32; c += 8)
    _mm256_storeu_ps(out + c,
                     _mm256_mul_ps(_mm256_loadu_ps(out + c), _mm256_set1_ps(power_of_two(scale))));
}

/// Every e4m3 code's value; as a scale, one load each.
struct E4m3Values {
  float value[256];
  constexpr E4m3Values() : value() {
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, mantissa = code & 7;
      float magnitude = exponent == 0 ? float(mantissa) / 512 : float(8 + mantissa) / 512;
      for (int i = 1; i < exponent; ++i) magnitude *= 2;
      value[code] = code >= 128 ? -magnitude : magnitude;
    }
  }
};
constexpr E4m3Values kE4m3;

/// Sixteen e2m1 codes (8 bytes) times `scale`: the low three bits of a code choose the magnitude,
/// the fourth is the sign.
inline void unpack_e2m1_16(const uint8_t* bytes, __m256 scale, float* out) {
  const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const __m256i down = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  const __m256i up = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
  for (int half = 0; half < 2; ++half) {
    int32_t eight;
    __builtin_memcpy(&eight, bytes + 4 * half, 4);
    const __m256i codes = _mm256_set1_epi32(eight);
    const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, _mm256_srlv_epi32(codes, down));
    const __m256 sign =
        _mm256_and_ps(_mm256_castsi256_ps(_mm256_sllv_epi32(codes, up)), _mm256_set1_ps(-0.0f));
    _mm256_storeu_ps(out + 8 * half, _mm256_mul_ps(_mm256_xor_ps(magnitude, sign), scale));
  }
}

void unpack(KvFormat format, const std::byte* row, int64_t dim, float* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  switch (format) {
    case KvFormat::kF32:
      __builtin_memcpy(out, row, size_t(dim) * sizeof(float));
      return;
    case KvFormat::kFp8Block32:
      for (int64_t c = 0; c < dim; c += 32) unpack_e4m3_32(bytes + c, bytes[dim + c / 32], out + c);
      return;
    case KvFormat::kFp4Block32:
      for (int64_t c = 0; c < dim; c += 16)
        unpack_e2m1_16(bytes + c / 2, _mm256_set1_ps(power_of_two(bytes[dim / 2 + c / 32])),
                       out + c);
      return;
    case KvFormat::kFp4Block16:
      for (int64_t c = 0; c < dim; c += 16)
        unpack_e2m1_16(bytes + c / 2, _mm256_broadcast_ss(&kE4m3.value[bytes[dim / 2 + c / 16]]),
                       out + c);
      return;
  }
}

/// Packing is exact, so that there is one way to do it.
void pack(KvFormat format, const float* x, int64_t dim, std::byte* row) {
  plain_row_kernels().pack(format, x, dim, row);
}

/// The scores of kRows rows with kHeads heads, 4 or 1.
template <int kRows, int kHeads>
inline void score_block(const float* q, const float* rows, int64_t dim, float factor, float* a,
                        int64_t a_stride) {
  __m256 sum[kRows][kHeads];
  dot_block<kRows, kHeads>(q, dim, rows, dim, dim, sum);
  for (int r = 0; r < kRows; ++r) {
    // One order of additions for any number of heads: a score does not depend on its neighbours.
    const auto& s = sum[r];
    const __m128 dots = kHeads == 4 ? sum8x4(s[0], s[1 % kHeads], s[2 % kHeads], s[3 % kHeads])
                                    : sum8x4(s[0], s[0], s[0], s[0]);
    float values[4];
    _mm_storeu_ps(values, _mm_mul_ps(dots, _mm_set1_ps(factor)));
    for (int h = 0; h < kHeads; ++h) a[h * a_stride + r] = values[h];
  }
}

template <int kHeads>
void score_heads(const float* q, const float* rows, int64_t num_rows, int64_t dim, float factor,
                 float* a, int64_t a_stride) {
  constexpr int kRows = kHeads == 4 ? 3 : 6;  // 12 or 6 sums: what the registers hold
  int64_t j = 0;
  for (; j + kRows <= num_rows; j += kRows)
    score_block<kRows, kHeads>(q, rows + j * dim, dim, factor, a + j, a_stride);
  for (; j < num_rows; ++j) score_block<1, kHeads>(q, rows + j * dim, dim, factor, a + j, a_stride);
}

void score_rows(const float* q, int64_t num_heads, const float* rows, int64_t num_rows, int64_t dim,
                float factor, float* a, int64_t a_stride) {
  int64_t h = 0;
  for (; h + 4 <= num_heads; h += 4)
    score_heads<4>(q + h * dim, rows, num_rows, dim, factor, a + h * a_stride, a_stride);
  for (; h < num_heads; ++h)
    score_heads<1>(q + h * dim, rows, num_rows, dim, factor, a + h * a_stride, a_stride);
}

double exp_sum(float* a, int64_t n, float shift) {
  const __m256 s = _mm256_set1_ps(shift);
  __m256 sum = _mm256_setzero_ps();
  for (int64_t j = 0; j < n; j += 8) {
    const __m256i mask = tail_mask(j + 8 <= n ? 8 : n - j);
    const __m256 value = _mm256_and_ps(exp8(_mm256_sub_ps(_mm256_maskload_ps(a + j, mask), s)),
                                       _mm256_castsi256_ps(mask));
    sum = _mm256_add_ps(sum, value);
    _mm256_maskstore_ps(a + j, mask, value);
  }
  return sum8(sum);
}

/// sums[h][c] += sum_j a[h * a_stride + j] rows[j * dim + c] for 8 * kVectors columns.
template <int kHeads, int kVectors>
inline void mix_columns(const float* a, int64_t a_stride, const float* rows, int64_t num_rows,
                        int64_t dim, float* sums, int64_t sums_stride) {
  __m256 sum[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v) sum[h][v] = _mm256_load_ps(sums + h * sums_stride + 8 * v);
  for (int64_t j = 0; j < num_rows; ++j) {
    __m256 row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = _mm256_loadu_ps(rows + j * dim + 8 * v);
    for (int h = 0; h < kHeads; ++h) {
      const __m256 weight = _mm256_broadcast_ss(a + h * a_stride + j);
      for (int v = 0; v < kVectors; ++v) sum[h][v] = _mm256_fmadd_ps(weight, row[v], sum[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int v = 0; v < kVectors; ++v) _mm256_store_ps(sums + h * sums_stride + 8 * v, sum[h][v]);
}

/// Some rows at a time, as many as the first-level cache holds beside the sums: all columns of
/// them, then the next. A column's sum is one chain over all rows either way.
template <int kHeads>
void mix_heads(const float* a, int64_t a_stride, const float* rows, int64_t num_rows, int64_t dim,
               const float* factor, float* out) {
  constexpr int kVectors = kHeads == 4 ? 2 : 8;
  constexpr int64_t kColumns = 512, kBlockFloats = 4096;
  alignas(32) float sums[kHeads * kColumns];
  const int64_t whole = dim / 8 * 8;
  const int64_t block_rows = kBlockFloats / dim > 4 ? kBlockFloats / dim : 4;
  for (int64_t first = 0; first < whole; first += kColumns) {
    const int64_t columns = whole - first < kColumns ? whole - first : kColumns;
    for (int h = 0; h < kHeads; ++h)
      for (int64_t c = 0; c < columns; c += 8)
        _mm256_store_ps(sums + h * kColumns + c, _mm256_setzero_ps());
    for (int64_t j = 0; j < num_rows; j += block_rows) {
      const int64_t n = num_rows - j < block_rows ? num_rows - j : block_rows;
      const float* const block = rows + j * dim + first;
      int64_t c = 0;
      for (; c + 8 * kVectors <= columns; c += 8 * kVectors)
        mix_columns<kHeads, kVectors>(a + j, a_stride, block + c, n, dim, sums + c, kColumns);
      for (; c < columns; c += 8)
        mix_columns<kHeads, 1>(a + j, a_stride, block + c, n, dim, sums + c, kColumns);
    }
    for (int h = 0; h < kHeads; ++h)
      for (int64_t c = 0; c < columns; c += 8) {
        float* const to = out + h * dim + first + c;
        _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_load_ps(sums + h * kColumns + c),
                                             _mm256_set1_ps(factor[h]), _mm256_loadu_ps(to)));
      }
  }
  for (int64_t c = whole; c < dim; ++c)
    for (int h = 0; h < kHeads; ++h) {
      float sum = 0;
      for (int64_t j = 0; j < num_rows; ++j) sum += a[h * a_stride + j] * rows[j * dim + c];
      out[h * dim + c] += sum * factor[h];
    }
}

void mix_rows(const float* a, int64_t a_stride, int64_t num_heads, const float* rows,
              int64_t num_rows, int64_t dim, const float* factor, float* out) {
  int64_t h = 0;
  for (; h + 4 <= num_heads; h += 4)
    mix_heads<4>(a + h * a_stride, a_stride, rows, num_rows, dim, factor + h, out + h * dim);
  for (; h < num_heads; ++h)
    mix_heads<1>(a + h * a_stride, a_stride, rows, num_rows, dim, factor + h, out + h * dim);
}

/// kKeys scores: the heads' sums run over groups of four, then over the rest.
template <int kKeys>
inline void index_block(const float* q, const float* w, const float* keys, int64_t num_heads,
                        int64_t dim, float factor, float* scores) {
  __m128 total[kKeys];
  float rest[kKeys] = {};
  for (auto& t : total) t = _mm_setzero_ps();
  int64_t h = 0;
  for (; h + 4 <= num_heads; h += 4) {
    __m256 sum[kKeys][4];
    dot_block<kKeys, 4>(q + h * dim, dim, keys, dim, dim, sum);
    for (int k = 0; k < kKeys; ++k) {
      const __m128 dots = sum8x4(sum[k][0], sum[k][1], sum[k][2], sum[k][3]);
      total[k] = _mm_fmadd_ps(_mm_loadu_ps(w + h), _mm_max_ps(dots, _mm_setzero_ps()), total[k]);
    }
  }
  for (; h < num_heads; ++h)
    for (int k = 0; k < kKeys; ++k) {
      const float value = dot_f32(q + h * dim, keys + k * dim, dim);
      rest[k] += w[h] * (value > 0 ? value : 0.0f);
    }
  for (int k = 0; k < kKeys; ++k) {
    const __m128 pair = _mm_add_ps(total[k], _mm_movehl_ps(total[k], total[k]));
    scores[k] = (rest[k] + _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))) * factor;
  }
}

void index_scores(const float* q, const float* w, const float* keys, int64_t num_heads,
                  int64_t num_keys, int64_t dim, float factor, float* scores) {
  int64_t g = 0;
  for (; g + 3 <= num_keys; g += 3)
    index_block<3>(q, w, keys + g * dim, num_heads, dim, factor, scores + g);
  for (; g < num_keys; ++g)
    index_block<1>(q, w, keys + g * dim, num_heads, dim, factor, scores + g);
}

constexpr RowKernels kAvx2{sum_squares, dots,       scale,   collapse, expand,
                           add_scaled,  dot3,       swiglu,  rotate,   unpack,
                           pack,        score_rows, exp_sum, mix_rows, index_scores};

}  // namespace

const RowKernels& avx2_row_kernels() { return kAvx2; }

}  // namespace onecard::ops::cpu
