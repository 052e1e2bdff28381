// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "base/dtype.h"
#include "device/view.h"

#include <cstdint>

namespace warprow {

// Activations [rows, cols], whose element type depends on the device. On a CPU it is float32. On CUDA, the
// residual stream and logits are float32 and everything between matrices is bfloat16, or float32 with dtype float32. Rows may be strided; a
// row's elements are contiguous. Passed to kernels by value, like View.
struct ActView {
  void* data = nullptr;
  int64_t shape[2] = {};
  int64_t stride = 0;  // elements from one row to the next
  DType dtype = DType::kF32;
  // Rows of memory from the first row on. Kernels may read those behind the last row, which have any values.
  int64_t capacity = 0;

  ActView() = default;
  ActView(DType type, void* base, int64_t rows, int64_t cols, int64_t row_stride)
      : data(base), shape{rows, cols}, stride(row_stride), dtype(type), capacity(rows) {}
  ActView(DType type, void* base, int64_t rows, int64_t cols)
      : ActView(type, base, rows, cols, cols) {}
  ActView(const View<float, 2>& v)  // NOLINT(google-explicit-constructor)
      : ActView(DType::kF32, v.data, v.shape[0], v.shape[1], v.stride[0]) {}

  [[nodiscard]] bool empty() const { return data == nullptr; }
  // n columns, from `first` on.
  [[nodiscard]] ActView columns(int64_t first, int64_t n) const {
    ActView part = *this;
    part.data = static_cast<std::byte*>(data) + first * static_cast<int64_t>(dtype_bytes(dtype));
    part.shape[1] = n;
    return part;
  }
  // n rows, from `first` on.
  [[nodiscard]] ActView rows(int64_t first, int64_t n) const {
    ActView part = *this;
    part.data =
        static_cast<std::byte*>(data) + first * stride * static_cast<int64_t>(dtype_bytes(dtype));
    part.shape[0] = n;
    part.capacity = capacity - first;
    return part;
  }
  [[nodiscard]] View<float, 2> f32() const {
    WR_CHECK(dtype == DType::kF32, "float32 activations wanted, {} given", dtype_name(dtype));
    return make_strided(static_cast<float*>(data), shape[0], shape[1], stride);
  }
};

// The same, read only.
struct ConstActView {
  const void* data = nullptr;
  int64_t shape[2] = {};
  int64_t stride = 0;
  DType dtype = DType::kF32;
  int64_t capacity = 0;

  ConstActView() = default;
  ConstActView(const ActView& v)  // NOLINT(google-explicit-constructor)
      : data(v.data),
        shape{v.shape[0], v.shape[1]},
        stride(v.stride),
        dtype(v.dtype),
        capacity(v.capacity) {}
  ConstActView(const View<const float, 2>& v)  // NOLINT(google-explicit-constructor)
      : data(v.data), shape{v.shape[0], v.shape[1]}, stride(v.stride[0]), capacity(v.shape[0]) {}
  ConstActView(const View<float, 2>& v)  // NOLINT(google-explicit-constructor)
      : ConstActView(ActView(v)) {}

  [[nodiscard]] bool empty() const { return data == nullptr; }
  [[nodiscard]] View<const float, 2> f32() const {
    WR_CHECK(dtype == DType::kF32, "float32 activations wanted, {} given", dtype_name(dtype));
    return make_strided(static_cast<const float*>(data), shape[0], shape[1], stride);
  }
};

}  // namespace warprow
