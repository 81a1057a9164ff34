#include "ops/cpu/linear_avx2.h"

#include <immintrin.h>

#include <cstring>

namespace onecard::ops::cpu::avx2 {
namespace {

// ---- dense rows

inline __m256 load8(const float* w) { return _mm256_loadu_ps(w); }
struct F16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};
inline __m256 load8(const F16* w) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
}
inline __m256 load8(const Bf16* w) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(packed), 16));
}

inline float horizontal_sum(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// The last in % 8 weights and inputs, padded with zeros, so that a sum has the same order whatever
// block it is computed in.
template <typename W>
__m256 load_tail(const W* w, int64_t count) {
  W padded[8] = {};
  std::memcpy(padded, w, size_t(count) * sizeof(W));
  return load8(padded);
}

// Each (row, output) pair has one accumulator: the result does not depend on the block's shape.
template <typename W, int kRows, int kOutputs>
void dot_block(const W* w, int64_t in, const float* x, int64_t x_stride, float* out,
               int64_t out_stride) {
  __m256 sum[kRows][kOutputs];
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOutputs; ++o) sum[r][o] = _mm256_setzero_ps();
  const int64_t body = in / 8 * 8;
  for (int64_t i = 0; i < body; i += 8) {
    __m256 weight[kOutputs];
    for (int o = 0; o < kOutputs; ++o) weight[o] = load8(w + o * in + i);
    for (int r = 0; r < kRows; ++r) {
      const __m256 input = _mm256_loadu_ps(x + r * x_stride + i);
      for (int o = 0; o < kOutputs; ++o) sum[r][o] = _mm256_fmadd_ps(weight[o], input, sum[r][o]);
    }
  }
  if (body < in) {
    for (int r = 0; r < kRows; ++r) {
      const __m256 input = load_tail(x + r * x_stride + body, in - body);
      for (int o = 0; o < kOutputs; ++o)
        sum[r][o] = _mm256_fmadd_ps(load_tail(w + o * in + body, in - body), input, sum[r][o]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOutputs; ++o) out[r * out_stride + o] = horizontal_sum(sum[r][o]);
}

template <typename W, int kRows, int kOutputs>
void dot_row_block(const W* w, int64_t in, int64_t outputs, const float* x, int64_t x_stride,
                   float* out, int64_t out_stride) {
  int64_t o = 0;
  for (; o + kOutputs <= outputs; o += kOutputs)
    dot_block<W, kRows, kOutputs>(w + o * in, in, x, x_stride, out + o, out_stride);
  for (; o < outputs; ++o) dot_block<W, kRows, 1>(w + o * in, in, x, x_stride, out + o, out_stride);
}

template <typename W>
void dot_all(const W* w, int64_t in, int64_t outputs, const float* x, int64_t x_stride,
             int64_t rows, float* out, int64_t out_stride) {
  int64_t t = 0;
  for (; t + 4 <= rows; t += 4)
    dot_row_block<W, 4, 3>(w, in, outputs, x + t * x_stride, x_stride, out + t * out_stride,
                           out_stride);
  for (; t < rows; ++t)
    dot_row_block<W, 1, 8>(w, in, outputs, x + t * x_stride, x_stride, out + t * out_stride,
                           out_stride);
}

// ---- EXL3 tiles
//
// A trellis lane (8 weights) is exactly `bits` bytes of the stream, so for a given j all lanes have
// the same bit phase: the windows of 8 columns come from 8 big-endian qwords by one uniform shift.

constexpr int kLookBack = 8;               // bytes of the tile's end, put before its start
constexpr int kStreamBytes = 32 * 8 + 16;  // room for bits = 8

// The tile as a stream of bytes, most significant bit first, with the look-back in front.
void make_stream(const uint8_t* tile, int bits, uint8_t* stream) {
  const __m256i swap = _mm256_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12, 3, 2,
                                        1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
  __m256i words = _mm256_setzero_si256();
  for (int i = 0; i < bits; ++i) {
    words = _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + 32 * i)),
                                swap);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(stream + kLookBack + 32 * i), words);
  }
  const int64_t last = _mm256_extract_epi64(words, 3);
  std::memcpy(stream, &last, sizeof(last));
}

// Qwords at p + c * step for c = 0..7, as {0,1,4,5} and {2,3,6,7}, so that shuffle_ps of their low
// halves puts the columns in order.
struct Columns {
  __m256i low;
  __m256i high;
};
inline __m256i load_four(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  int64_t q[4];
  std::memcpy(&q[0], a, 8);
  std::memcpy(&q[1], b, 8);
  std::memcpy(&q[2], c, 8);
  std::memcpy(&q[3], d, 8);
  const __m256i swap = _mm256_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6,
                                        5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8);
  return _mm256_shuffle_epi8(_mm256_setr_epi64x(q[0], q[1], q[2], q[3]), swap);
}
inline Columns load_columns(const uint8_t* p, int64_t step) {
  return {load_four(p, p + step, p + 4 * step, p + 5 * step),
          load_four(p + 2 * step, p + 3 * step, p + 6 * step, p + 7 * step)};
}

inline __m256i states_of(const Columns& columns, int shift) {
  const __m256 a = _mm256_castsi256_ps(_mm256_srli_epi64(columns.low, shift));
  const __m256 b = _mm256_castsi256_ps(_mm256_srli_epi64(columns.high, shift));
  return _mm256_and_si256(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
                          _mm256_set1_epi32(0xFFFF));
}

inline __m256 round_to_f16(__m256 v) {
  return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

struct Mul1 {
  static __m256 value(__m256i state) {
    const __m256i p = _mm256_mullo_epi32(state, _mm256_set1_epi32(int(0x83DCD12Du)));
    const __m256i pairs = _mm256_maddubs_epi16(p, _mm256_set1_epi8(1));
    const __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    return round_to_f16(_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums),
                                        _mm256_set1_ps(0.00676727294921875f),
                                        _mm256_set1_ps(-3.453125f)));
  }
};

inline __m256 sum_of_halves(__m256i product) {
  const __m256i halves =
      _mm256_xor_si256(_mm256_and_si256(product, _mm256_set1_epi32(int(0x8FFF8FFFu))),
                       _mm256_set1_epi32(0x3B603B60));
  const __m256i packed = _mm256_permute4x64_epi64(
      _mm256_packus_epi32(_mm256_and_si256(halves, _mm256_set1_epi32(0xFFFF)),
                          _mm256_srli_epi32(halves, 16)),
      0xD8);  // all lower halves, then all upper ones
  return round_to_f16(_mm256_add_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(packed)),
                                    _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1))));
}

struct Mcg {
  static __m256 value(__m256i state) {
    return sum_of_halves(_mm256_mullo_epi32(state, _mm256_set1_epi32(int(0xCBAC1FEDu))));
  }
};

struct ThreeInst {
  static __m256 value(__m256i state) {
    return sum_of_halves(_mm256_add_epi32(_mm256_mullo_epi32(state, _mm256_set1_epi32(89226354)),
                                          _mm256_set1_epi32(64248484)));
  }
};

template <typename Book, int kBits>
void decode_tile(const uint8_t* stream, float* out) {
  for (int q = 0; q < 4; ++q) {  // lanes q, q + 4, ..: columns 0..7 and 8..15 of four rows
    const uint8_t* const lane = stream + kLookBack + q * kBits;
    const Columns first = load_columns(lane - 2, 4 * kBits);
    // Above 6 bits the 8 windows need 72 or 80 bits: the upper four come from the lane's end.
    const Columns second = kBits <= 6 ? first : load_columns(lane + kBits - 8, 4 * kBits);
    for (int j = 0; j < 8; ++j) {
      const int shift = j < 4 || kBits <= 6 ? 48 - (j + 1) * kBits : (7 - j) * kBits;
      const __m256 values = Book::value(states_of(j < 4 ? first : second, shift));
      const int row = 2 * q + (j & 1) + 8 * (j >> 1 & 1);
      _mm256_storeu_ps(out + 16 * row + 8 * (j >> 2), values);
    }
  }
}

template <typename Book, int kBits>
void decode_tiles(const uint8_t* tiles, int64_t tile_stride, float* strip) {
  uint8_t streams[8][kStreamBytes];
  for (int i = 0; i < 8; ++i) make_stream(tiles + i * tile_stride, kBits, streams[i]);
  for (int i = 0; i < 8; ++i) decode_tile<Book, kBits>(streams[i], strip + 256 * i);
}

template <typename Book>
void decode_by_bits(const uint8_t* tiles, int64_t tile_stride, int bits, float* strip) {
  switch (bits) {
    case 1:
      return decode_tiles<Book, 1>(tiles, tile_stride, strip);
    case 2:
      return decode_tiles<Book, 2>(tiles, tile_stride, strip);
    case 3:
      return decode_tiles<Book, 3>(tiles, tile_stride, strip);
    case 4:
      return decode_tiles<Book, 4>(tiles, tile_stride, strip);
    case 5:
      return decode_tiles<Book, 5>(tiles, tile_stride, strip);
    case 6:
      return decode_tiles<Book, 6>(tiles, tile_stride, strip);
    case 7:
      return decode_tiles<Book, 7>(tiles, tile_stride, strip);
    default:
      return decode_tiles<Book, 8>(tiles, tile_stride, strip);
  }
}

template <int kRows>
void accumulate_block(const float* x, int64_t x_stride, const float* strip, float* z,
                      int64_t z_stride) {
  __m256 sum[kRows][2];
  for (int r = 0; r < kRows; ++r)
    for (int h = 0; h < 2; ++h) sum[r][h] = _mm256_loadu_ps(z + r * z_stride + 8 * h);
  for (int64_t k = 0; k < 128; ++k) {
    const __m256 w0 = _mm256_loadu_ps(strip + 16 * k);
    const __m256 w1 = _mm256_loadu_ps(strip + 16 * k + 8);
    for (int r = 0; r < kRows; ++r) {
      const __m256 input = _mm256_broadcast_ss(x + r * x_stride + k);
      sum[r][0] = _mm256_fmadd_ps(input, w0, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(input, w1, sum[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int h = 0; h < 2; ++h) _mm256_storeu_ps(z + r * z_stride + 8 * h, sum[r][h]);
}

// ---- Hadamard of 128 values in 16 registers

inline void hadamard128(__m256 v[16]) {
  const auto inside = [](__m256 u, __m256 swapped, __m256 signs) {
    return _mm256_fmadd_ps(u, signs, swapped);  // lower: u + partner; upper: partner - u
  };
  const __m256 signs1 = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
  const __m256 signs2 = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
  const __m256 signs4 = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
  for (int i = 0; i < 16; ++i) {
    v[i] = inside(v[i], _mm256_permute_ps(v[i], 0xB1), signs1);
    v[i] = inside(v[i], _mm256_permute_ps(v[i], 0x4E), signs2);
    v[i] = inside(v[i], _mm256_permute2f128_ps(v[i], v[i], 1), signs4);
  }
  for (int h = 1; h < 16; h *= 2)
    for (int base = 0; base < 16; base += 2 * h)
      for (int i = base; i < base + h; ++i) {
        const __m256 sum = _mm256_add_ps(v[i], v[i + h]);
        v[i + h] = _mm256_sub_ps(v[i], v[i + h]);
        v[i] = sum;
      }
  for (int i = 0; i < 16; ++i) v[i] = _mm256_mul_ps(v[i], _mm256_set1_ps(0.08838834764831845f));
}

inline __m256 load_f16(const uint16_t* bits) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits)));
}

}  // namespace

void dot_rows(WeightType type, const void* w, int64_t in, int64_t outputs, const float* x,
              int64_t x_stride, int64_t rows, float* out, int64_t out_stride) {
  switch (type) {
    case WeightType::kF32:
      return dot_all(static_cast<const float*>(w), in, outputs, x, x_stride, rows, out, out_stride);
    case WeightType::kF16:
      return dot_all(static_cast<const F16*>(w), in, outputs, x, x_stride, rows, out, out_stride);
    case WeightType::kBf16:
      return dot_all(static_cast<const Bf16*>(w), in, outputs, x, x_stride, rows, out, out_stride);
  }
}

void decode_strip(const void* tiles, int64_t tile_stride, int bits, int codebook, float* strip) {
  const auto* bytes = static_cast<const uint8_t*>(tiles);
  switch (codebook) {
    case 0:
      return decode_by_bits<ThreeInst>(bytes, tile_stride, bits, strip);
    case 1:
      return decode_by_bits<Mcg>(bytes, tile_stride, bits, strip);
    default:
      return decode_by_bits<Mul1>(bytes, tile_stride, bits, strip);
  }
}

void accumulate_strip(const float* x, int64_t x_stride, int64_t rows, const float* strip, float* z,
                      int64_t z_stride) {
  int64_t t = 0;
  for (; t + 4 <= rows; t += 4)
    accumulate_block<4>(x + t * x_stride, x_stride, strip, z + t * z_stride, z_stride);
  for (; t < rows; ++t)
    accumulate_block<1>(x + t * x_stride, x_stride, strip, z + t * z_stride, z_stride);
}

void scale_then_hadamard(const float* in, const uint16_t* scale, int64_t size, float* out) {
  for (int64_t base = 0; base < size; base += 128) {
    __m256 v[16];
    for (int i = 0; i < 16; ++i)
      v[i] = _mm256_mul_ps(_mm256_loadu_ps(in + base + 8 * i), load_f16(scale + base + 8 * i));
    hadamard128(v);
    for (int i = 0; i < 16; ++i) _mm256_storeu_ps(out + base + 8 * i, v[i]);
  }
}

void hadamard_then_scale(const float* in, const uint16_t* scale, float* out) {
  __m256 v[16];
  for (int i = 0; i < 16; ++i) v[i] = _mm256_loadu_ps(in + 8 * i);
  hadamard128(v);
  for (int i = 0; i < 16; ++i)
    _mm256_storeu_ps(out + 8 * i, _mm256_mul_ps(v[i], load_f16(scale + 8 * i)));
}

}  // namespace onecard::ops::cpu::avx2
