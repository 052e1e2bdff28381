// SPDX-License-Identifier: Apache-2.0
// An operation case describes one call of an operation: shapes, inputs drawn from a seed, the reference result in
// double, and the bytes moved. The CPU test, the CUDA test and the benchmark of an operation build their calls from the
// same case. Each operation has a file <operation>_case.h beside this one.
#pragma once

#include "base/dtype.h"
#include "kernels/act_view.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace warprow::testing {

// The value of an element that no kernel has written. It is exact in every type.
inline constexpr float kCasePoison = 8192.0F;

// Allocates the arrays of a case.
class CaseMemory {
 public:
  virtual ~CaseMemory() = default;

  // Allocates an array that starts with these bytes, aligned for every kernel.
  virtual std::byte* put_bytes(const void* bytes, size_t n) = 0;

  template <typename T>
  T* put(const std::vector<T>& values) {
    return reinterpret_cast<T*>(put_bytes(values.data(), values.size() * sizeof(T)));
  }
  // Converts floats to another element type and stores them.
  std::byte* put_as(DType type, const std::vector<float>& values) {
    if (type == DType::kF32) {
      return put_bytes(values.data(), values.size() * sizeof(float));
    }
    std::vector<uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), &f32_to_bf16);
    return put_bytes(halves.data(), halves.size() * sizeof(uint16_t));
  }
};

class HostMemory final : public CaseMemory {
 public:
  std::byte* put_bytes(const void* bytes, size_t n) override {
    constexpr size_t kAlign = 64;
    arrays_.push_back(std::make_unique<std::byte[]>(n + kAlign));
    void* at = arrays_.back().get();
    size_t space = n + kAlign;
    at = std::align(kAlign, n, at, space);
    if (n > 0) {
      std::memcpy(at, bytes, n);
    }
    return static_cast<std::byte*>(at);
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> arrays_;
};

// Rounds each value to the type.
inline std::vector<float> rounded_to(DType type, std::vector<float> values) {
  if (type == DType::kBF16) {
    for (float& v : values) {
      v = bf16_to_f32(f32_to_bf16(v));
    }
  }
  return values;
}

// Normally distributed values. Arrays longer than kStretch, which only benchmarks have, repeat.
inline std::vector<float> normals(size_t n, uint32_t seed, float scale = 1.0F, float mean = 0.0F) {
  constexpr size_t kStretch = (size_t{1} << 21) + 37;
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(mean, scale);
  std::vector<float> values(n);
  for (size_t i = 0; i < std::min(n, kStretch); ++i) {
    values[i] = normal(rng);
  }
  for (size_t i = kStretch; i < n; ++i) {
    values[i] = values[i - kStretch];
  }
  return values;
}

// Converts n elements of a type, in host memory, to float.
inline std::vector<float> as_floats(DType type, const std::byte* data, size_t n) {
  std::vector<float> out(n);
  if (type == DType::kF32) {
    std::memcpy(out.data(), data, n * sizeof(float));
    return out;
  }
  for (size_t i = 0; i < n; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, data + i * sizeof half, sizeof half);
    out[i] = bf16_to_f32(half);
  }
  return out;
}

// The largest accepted difference between a result and its reference.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

// The tolerance after rounding to the output type: at least half an ulp of that type.
inline Tolerance stored_as(DType type, Tolerance exact) {
  constexpr double kHalfUlpOfBf16 = 1.02 / 256;
  return type == DType::kBF16 ? Tolerance{kHalfUlpOfBf16, exact.absolute} : exact;
}

// The index of the first element outside the tolerance, or -1. NaN is always outside.
inline int64_t first_mismatch(const std::vector<float>& got,
                              const std::vector<double>& expected,
                              Tolerance tolerance) {
  if (got.size() != expected.size()) {
    return static_cast<int64_t>(std::min(got.size(), expected.size()));
  }
  for (size_t i = 0; i < got.size(); ++i) {
    const double limit = tolerance.relative * std::abs(expected[i]) + tolerance.absolute;
    if (!(std::abs(got[i] - expected[i]) <= limit)) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

// A matrix of a case. Its rows have a gap between them that an operation must not write.
struct CaseMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t gap = 0;

  [[nodiscard]] int64_t stride() const { return cols + gap; }
  [[nodiscard]] size_t size() const { return static_cast<size_t>(rows * stride()); }
  [[nodiscard]] ActView view(DType type, std::byte* data) const {
    return {type, data, rows, cols, stride()};
  }
  // The matrix before any write, in the reference's type.
  [[nodiscard]] std::vector<double> unwritten() const {
    return std::vector<double>(size(), kCasePoison);
  }
  std::byte* put_unwritten(CaseMemory& memory, DType type) const {
    return memory.put_as(type, std::vector<float>(size(), kCasePoison));
  }
};

// The elements of a matrix in host memory, including the gaps.
inline std::vector<float> floats_of(const ActView& view, const CaseMatrix& matrix) {
  return as_floats(view.dtype, static_cast<const std::byte*>(view.data), matrix.size());
}

}  // namespace warprow::testing
