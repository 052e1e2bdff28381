// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/activation/act_and_mul.h"
#include "tests/support/op_case.h"

#include <cmath>
#include <utility>
#include <vector>

namespace warprow::testing {

// silu_and_mul and gelu_and_mul: apply the activation to the first half of x's columns and multiply by the second half.
struct GatedShape {
  int64_t rows = 1;
  int64_t width = 1;  // output columns; x has twice as many
  DType type = DType::kF32;
  int64_t gap = 0;      // elements between rows of x and of the output
  float scale = 2.0F;   // standard deviation of x
  float spread = 1.0F;  // every twentieth element of x is this many times larger
  uint32_t seed = 11;

  [[nodiscard]] CaseMatrix input() const { return {rows, 2 * width, gap}; }
  [[nodiscard]] CaseMatrix output() const { return {rows, width, gap}; }
  [[nodiscard]] std::vector<float> x() const {
    std::vector<float> values = normals(input().size(), seed, scale);
    for (size_t i = 7; i < values.size(); i += 20) {
      values[i] *= spread;
    }
    return rounded_to(type, std::move(values));
  }
  [[nodiscard]] double bytes() const {
    return 3.0 * static_cast<double>(rows * width) * static_cast<double>(dtype_bytes(type));
  }
};

inline double silu(double v) { return v / (1.0 + std::exp(-v)); }
inline double gelu(double v) {
  const double u = std::sqrt(2.0 / std::acos(-1.0)) * (v + 0.044715 * v * v * v);
  return 0.5 * v * (1.0 + std::tanh(u));
}
inline double exact_gelu(double v) { return 0.5 * v * std::erfc(-v * std::sqrt(0.5)); }

template <typename Args, double (*kFunction)(double)>
struct GatedCase : GatedShape {
  [[nodiscard]] Args args(CaseMemory& memory) const {
    return {.x = input().view(type, memory.put_as(type, x())),
            .out = output().view(type, output().put_unwritten(memory, type))};
  }
  // The whole output buffer, including the gaps.
  [[nodiscard]] std::vector<double> reference() const {
    const std::vector<float> values = x();
    std::vector<double> result = output().unwritten();
    for (int64_t t = 0; t < rows; ++t) {
      const float* row = values.data() + t * input().stride();
      for (int64_t i = 0; i < width; ++i) {
        result[static_cast<size_t>(t * output().stride() + i)] =
            kFunction(static_cast<double>(row[i])) * static_cast<double>(row[width + i]);
      }
    }
    return result;
  }
};
using SiluCase = GatedCase<SiluAndMulArgs, &silu>;
using GeluCase = GatedCase<GeluAndMulArgs, &gelu>;
using ExactGeluCase = GatedCase<GeluAndMulArgs, &exact_gelu>;

}  // namespace warprow::testing
