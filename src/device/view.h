// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstdint>
#include <type_traits>

namespace warprow {

// A typed, strided, non-owning view of memory. The last dimension is contiguous unless strides say otherwise;
// strides are in elements. Passed by value into kernels.
template <typename T, int N>
struct View {
  T* data = nullptr;
  int64_t shape[N] = {};
  int64_t stride[N] = {};

  template <typename... I>
  WR_HD T& operator()(I... index) const {
    static_assert(sizeof...(I) == N);
    const int64_t at[N] = {static_cast<int64_t>(index)...};
    int64_t offset = 0;
    for (int d = 0; d < N; ++d) {
      offset += at[d] * stride[d];
    }
    return data[offset];
  }
  [[nodiscard]] WR_HD T* row(int64_t i) const { return data + i * stride[0]; }
  [[nodiscard]] WR_HD bool empty() const { return data == nullptr; }
  // Conversion to a view of const elements.
  template <typename C>
    requires(!std::is_const_v<T> && std::is_same_v<C, const T>)
  WR_HD operator View<C, N>() const {  // NOLINT(google-explicit-constructor)
    View<C, N> v;
    v.data = data;
    for (int d = 0; d < N; ++d) {
      v.shape[d] = shape[d];
      v.stride[d] = stride[d];
    }
    return v;
  }
};

template <typename T>
WR_HD View<T, 1> make_view(T* data, int64_t n) {
  return {data, {n}, {1}};
}
template <typename T>
WR_HD View<T, 2> make_view(T* data, int64_t rows, int64_t cols) {
  return {data, {rows, cols}, {cols, 1}};
}
template <typename T>
WR_HD View<T, 2> make_strided(T* data, int64_t rows, int64_t cols, int64_t row_stride) {
  return {data, {rows, cols}, {row_stride, 1}};
}

}  // namespace warprow
