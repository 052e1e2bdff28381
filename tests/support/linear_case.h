// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/linear.h"
#include "tests/support/op_case.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow::testing {

struct LinearInputs {
  std::vector<float> x;  // [m, k]
  std::vector<float> w;  // [n, k]
  std::vector<float> norm;
  std::vector<float> bias;
  std::vector<float> y;  // [m, outputs]  previous contents, for kAdd
};

// linear with one bf16 matrix, an optional norm before it and an epilogue after it. Weights are exactly representable
// in bf16, and so is x if there is no norm. Both devices thus compute on the same numbers.
struct LinearCase {
  int32_t m = 1;
  int32_t n = 64;
  int32_t k = 64;
  LinearEpilogue epilogue = LinearEpilogue::kStore;
  bool norm = false;
  bool bias = false;
  bool y_f32 = false;  // output type on CUDA; a CPU's is always f32
  int32_t y_pad = 0;   // extra columns of y on both sides of the output
  int32_t x_pad = 0;   // elements between rows of x
  bool batch_invariant = false;
  float eps = 1e-5F;

  [[nodiscard]] std::string text() const {
    return fmt::format("m {} n {} k {} epilogue {} norm {} bias {} f32 {} pads {} {} invariant {}",
                       m,
                       n,
                       k,
                       static_cast<int>(epilogue),
                       norm,
                       bias,
                       y_f32,
                       y_pad,
                       x_pad,
                       batch_invariant);
  }
  [[nodiscard]] int32_t outputs() const { return epilogue == LinearEpilogue::kSwiGlu ? n / 2 : n; }

  [[nodiscard]] LinearInputs inputs(uint32_t seed) const {
    LinearInputs in;
    const auto num_rows = static_cast<size_t>(m);
    const auto width = static_cast<size_t>(k);
    in.x = uniform(num_rows * width, 2.0F, seed);
    if (!norm) {
      in.x = rounded_to(DType::kBF16, in.x);
    }
    in.w = rounded_to(
        DType::kBF16,
        uniform(static_cast<size_t>(n) * width, 2.0F / std::sqrt(static_cast<float>(k)), seed + 1));
    in.norm = uniform(width, 1.5F, seed + 2);
    in.bias = rounded_to(DType::kBF16, uniform(static_cast<size_t>(n), 1.0F, seed + 3));
    in.y = uniform(num_rows * static_cast<size_t>(outputs()), 1.0F, seed + 4);
    return in;
  }

  // [m, outputs] in double. The normalised x is not rounded to bf16.
  [[nodiscard]] std::vector<double> reference(const LinearInputs& in) const {
    const auto width = static_cast<size_t>(k);
    const auto num_outputs = static_cast<size_t>(outputs());
    std::vector<double> out;
    for (size_t t = 0; t < static_cast<size_t>(m); ++t) {
      const std::vector<double> h = normed_row(in, t);
      const auto product = [&](size_t j) {
        double sum = bias ? static_cast<double>(in.bias[j]) : 0.0;
        for (size_t i = 0; i < width; ++i) {
          sum += h[i] * static_cast<double>(in.w[j * width + i]);
        }
        return sum;
      };
      for (size_t j = 0; j < num_outputs; ++j) {
        double v = product(j);
        if (epilogue == LinearEpilogue::kSwiGlu) {
          v = v / (1.0 + std::exp(-v)) * product(j + num_outputs);
        } else if (epilogue == LinearEpilogue::kAdd) {
          v += static_cast<double>(in.y[t * num_outputs + j]);
        }
        out.push_back(v);
      }
    }
    return out;
  }

  // Bytes of the weights alone, which dominate for few rows.
  [[nodiscard]] double weight_bytes() const { return 2.0 * n * k; }
  [[nodiscard]] double flops() const { return 2.0 * m * n * k; }

 private:
  static std::vector<float> uniform(size_t count, float scale, uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> distribution(-scale, scale);
    std::vector<float> out(count);
    for (float& v : out) {
      v = distribution(random);
    }
    return out;
  }
  [[nodiscard]] std::vector<double> normed_row(const LinearInputs& in, size_t row) const {
    const auto width = static_cast<size_t>(k);
    const auto first = in.x.begin() + static_cast<std::ptrdiff_t>(row * width);
    std::vector<double> h(first, first + static_cast<std::ptrdiff_t>(width));
    if (norm) {
      double squares = 0.0;
      for (const double v : h) {
        squares += v * v;
      }
      const double factor = 1.0 / std::sqrt(squares / k + static_cast<double>(eps));
      for (size_t i = 0; i < width; ++i) {
        h[i] *= factor * static_cast<double>(in.norm[i]);
      }
    }
    return h;
  }
};

}  // namespace warprow::testing
