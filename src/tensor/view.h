// A borrowed matrix: rows x cols of T, rows `stride` elements apart. Goes by value; owns nothing.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

namespace onecard {

template <typename T>
struct View {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next, >= cols

  View() = default;
  constexpr View(T* data_in, int64_t rows_in, int64_t cols_in, int64_t stride_in)
      : data(data_in), rows(rows_in), cols(cols_in), stride(stride_in) {}
  constexpr View(T* data_in, int64_t rows_in, int64_t cols_in)
      : View(data_in, rows_in, cols_in, cols_in) {}
  /// A view of constants from one of variables.
  template <typename U>
  requires(std::is_same_v<T, const U> && !std::is_const_v<U>) constexpr View(
      const View<U>& other)  // NOLINT(google-explicit-constructor): as T* to const T*
      : View(other.data, other.rows, other.cols, other.stride) {}

  constexpr T* row(int64_t row_idx) const { return data + row_idx * stride; }
  std::span<T> row_span(int64_t row_idx) const { return {row(row_idx), size_t(cols)}; }
  /// Rows [begin, end).
  constexpr View rows_between(int64_t begin, int64_t end) const {
    return {row(begin), end - begin, cols, stride};
  }
  /// Columns [begin, end) of every row.
  constexpr View cols_between(int64_t begin, int64_t end) const {
    return {data + begin, rows, end - begin, stride};
  }
  template <typename U>
  constexpr bool same_shape(const View<U>& other) const {
    return rows == other.rows && cols == other.cols;
  }
  constexpr bool contiguous() const { return stride == cols; }
};

}  // namespace onecard
