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

double dot(const float* a, const float* b, int64_t n) { return dot_f32(a, b, n); }

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

/// Eight e4m3 codes to f32: exponent and mantissa moved into place, then the bias put right.
inline __m256 e4m3_8(__m128i codes) {
  const __m256i wide = _mm256_cvtepu8_epi32(codes);
  const __m256i magnitude = _mm256_slli_epi32(_mm256_and_si256(wide, _mm256_set1_epi32(0x7f)), 20);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(wide, _mm256_set1_epi32(0x80)), 24);
  return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(magnitude, sign)),
                       _mm256_set1_ps(0x1p120f));
}

inline float e4m3_1(uint8_t code) { return _mm256_cvtss_f32(e4m3_8(_mm_cvtsi32_si128(code))); }

/// Sixteen e2m1 codes (8 bytes) times twice their value, as bytes.
inline __m128i e2m1_16(const uint8_t* bytes) {
  const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  const __m128i nibble = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(packed, nibble);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), nibble);
  return _mm_shuffle_epi8(table, _mm_unpacklo_epi8(low, high));
}

inline void store_16(__m128i values, float factor, float* out) {
  const __m256 f = _mm256_set1_ps(factor);
  const __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(values));
  const __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(values, 8)));
  _mm256_storeu_ps(out, _mm256_mul_ps(low, f));
  _mm256_storeu_ps(out + 8, _mm256_mul_ps(high, f));
}

void unpack(KvFormat format, const std::byte* row, int64_t dim, float* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  switch (format) {
    case KvFormat::kF32:
      __builtin_memcpy(out, row, size_t(dim) * sizeof(float));
      return;
    case KvFormat::kFp8Block32:
      for (int64_t c = 0; c < dim; c += 8) {
        const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + c));
        const __m256 s = _mm256_set1_ps(power_of_two(bytes[dim + c / 32]));
        _mm256_storeu_ps(out + c, _mm256_mul_ps(e4m3_8(codes), s));
      }
      return;
    case KvFormat::kFp4Block32:
      for (int64_t c = 0; c < dim; c += 16)
        store_16(e2m1_16(bytes + c / 2), 0.5f * power_of_two(bytes[dim / 2 + c / 32]), out + c);
      return;
    case KvFormat::kFp4Block16:
      for (int64_t c = 0; c < dim; c += 16)
        store_16(e2m1_16(bytes + c / 2), 0.5f * e4m3_1(bytes[dim / 2 + c / 16]), out + c);
      return;
  }
}

/// Packing is exact, so that there is one way to do it.
void pack(KvFormat format, const float* x, int64_t dim, std::byte* row) {
  plain_row_kernels().pack(format, x, dim, row);
}

void score_rows(const float* q, const float* rows, int64_t num_rows, int64_t dim, float factor,
                float* a) {
  const int64_t whole = dim / 8 * 8;
  const __m256i mask = tail_mask(dim - whole);
  const __m128 f = _mm_set1_ps(factor);
  int64_t j = 0;
  for (; j + 4 <= num_rows; j += 4) {
    const float* row = rows + j * dim;
    __m256 sum0 = _mm256_setzero_ps(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (int64_t c = 0; c < whole; c += 8) {
      const __m256 query = _mm256_loadu_ps(q + c);
      sum0 = _mm256_fmadd_ps(query, _mm256_loadu_ps(row + c), sum0);
      sum1 = _mm256_fmadd_ps(query, _mm256_loadu_ps(row + dim + c), sum1);
      sum2 = _mm256_fmadd_ps(query, _mm256_loadu_ps(row + 2 * dim + c), sum2);
      sum3 = _mm256_fmadd_ps(query, _mm256_loadu_ps(row + 3 * dim + c), sum3);
    }
    if (whole < dim) {
      const __m256 query = _mm256_maskload_ps(q + whole, mask);
      row += whole;
      sum0 = _mm256_fmadd_ps(query, _mm256_maskload_ps(row, mask), sum0);
      sum1 = _mm256_fmadd_ps(query, _mm256_maskload_ps(row + dim, mask), sum1);
      sum2 = _mm256_fmadd_ps(query, _mm256_maskload_ps(row + 2 * dim, mask), sum2);
      sum3 = _mm256_fmadd_ps(query, _mm256_maskload_ps(row + 3 * dim, mask), sum3);
    }
    _mm_storeu_ps(a + j, _mm_mul_ps(sum8x4(sum0, sum1, sum2, sum3), f));
  }
  for (; j < num_rows; ++j) {
    const float* row = rows + j * dim;
    __m256 sum = _mm256_setzero_ps();
    for (int64_t c = 0; c < whole; c += 8)
      sum = _mm256_fmadd_ps(_mm256_loadu_ps(q + c), _mm256_loadu_ps(row + c), sum);
    if (whole < dim)
      sum = _mm256_fmadd_ps(_mm256_maskload_ps(q + whole, mask),
                            _mm256_maskload_ps(row + whole, mask), sum);
    // The same order of additions as for four rows: a score does not depend on its neighbours.
    a[j] = _mm_cvtss_f32(sum8x4(sum, sum, sum, sum)) * factor;
  }
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

template <int kVectors>
void mix_columns(const float* a, const float* rows, int64_t num_rows, int64_t dim, float factor,
                 float* out) {
  __m256 sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = _mm256_setzero_ps();
  for (int64_t j = 0; j < num_rows; ++j) {
    const __m256 weight = _mm256_broadcast_ss(a + j);
    for (int v = 0; v < kVectors; ++v)
      sum[v] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(rows + j * dim + 8 * v), sum[v]);
  }
  for (int v = 0; v < kVectors; ++v)
    _mm256_storeu_ps(out + 8 * v,
                     _mm256_fmadd_ps(sum[v], _mm256_set1_ps(factor), _mm256_loadu_ps(out + 8 * v)));
}

void mix_rows(const float* a, const float* rows, int64_t num_rows, int64_t dim, float factor,
              float* out) {
  int64_t c = 0;
  for (; c + 64 <= dim; c += 64) mix_columns<8>(a, rows + c, num_rows, dim, factor, out + c);
  for (; c + 8 <= dim; c += 8) mix_columns<1>(a, rows + c, num_rows, dim, factor, out + c);
  for (; c < dim; ++c) {
    float sum = 0;
    for (int64_t j = 0; j < num_rows; ++j) sum += a[j] * rows[j * dim + c];
    out[c] += sum * factor;
  }
}

void index_scores(const float* q, const float* w, const float* keys, int64_t num_heads,
                  int64_t num_keys, int64_t dim, float factor, float* scores) {
  const int64_t whole = dim / 8 * 8;
  const __m256i mask = tail_mask(dim - whole);
  for (int64_t g = 0; g < num_keys; ++g) {
    const float* key = keys + g * dim;
    __m128 total = _mm_setzero_ps();
    int64_t h = 0;
    for (; h + 4 <= num_heads; h += 4) {
      const float* head = q + h * dim;
      __m256 sum0 = _mm256_setzero_ps(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
      for (int64_t c = 0; c < whole; c += 8) {
        const __m256 k = _mm256_loadu_ps(key + c);
        sum0 = _mm256_fmadd_ps(k, _mm256_loadu_ps(head + c), sum0);
        sum1 = _mm256_fmadd_ps(k, _mm256_loadu_ps(head + dim + c), sum1);
        sum2 = _mm256_fmadd_ps(k, _mm256_loadu_ps(head + 2 * dim + c), sum2);
        sum3 = _mm256_fmadd_ps(k, _mm256_loadu_ps(head + 3 * dim + c), sum3);
      }
      if (whole < dim) {
        const __m256 k = _mm256_maskload_ps(key + whole, mask);
        head += whole;
        sum0 = _mm256_fmadd_ps(k, _mm256_maskload_ps(head, mask), sum0);
        sum1 = _mm256_fmadd_ps(k, _mm256_maskload_ps(head + dim, mask), sum1);
        sum2 = _mm256_fmadd_ps(k, _mm256_maskload_ps(head + 2 * dim, mask), sum2);
        sum3 = _mm256_fmadd_ps(k, _mm256_maskload_ps(head + 3 * dim, mask), sum3);
      }
      const __m128 dots = _mm_max_ps(sum8x4(sum0, sum1, sum2, sum3), _mm_setzero_ps());
      total = _mm_fmadd_ps(_mm_loadu_ps(w + h), dots, total);
    }
    float sum = 0;
    for (; h < num_heads; ++h) {
      const float value = dot_f32(q + h * dim, key, dim);
      sum += w[h] * (value > 0 ? value : 0.0f);
    }
    const __m128 pair = _mm_add_ps(total, _mm_movehl_ps(total, total));
    scores[g] = (sum + _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))) * factor;
  }
}

constexpr RowKernels kAvx2{sum_squares, dot,        scale,   collapse, expand,
                           add_scaled,  dot3,       swiglu,  rotate,   unpack,
                           pack,        score_rows, exp_sum, mix_rows, index_scores};

}  // namespace

const RowKernels& avx2_row_kernels() { return kAvx2; }

}  // namespace onecard::ops::cpu
