// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/activation/gelu.h"
#include "kernels/embedding/place_embedding.h"
#include "kernels/heads/resize_heads.h"
#include "kernels/norm/layer_norm.h"
#include "kernels/pool/mean_rows.h"
#include "tests/support/op_case.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace warprow::testing {

struct LayerNormCase {
  int64_t rows = 1;
  int64_t width = 1;
  DType in = DType::kF32;
  DType out = DType::kF32;
  int64_t gap = 0;  // elements between rows of x, add and the output
  bool adds = true;
  bool biased = true;
  float eps = 1e-12F;
  uint32_t seed = 1;

  [[nodiscard]] CaseMatrix matrix() const { return {rows, width, gap}; }
  [[nodiscard]] std::vector<float> x() const {
    return rounded_to(in, normals(matrix().size(), seed, 3.0F, 1.5F));
  }
  [[nodiscard]] std::vector<float> add() const {
    return rounded_to(out, normals(matrix().size(), seed + 3));
  }
  [[nodiscard]] std::vector<float> weight() const {
    return normals(static_cast<size_t>(width), seed + 1, 0.2F, 1.0F);
  }
  [[nodiscard]] std::vector<float> bias() const {
    return normals(static_cast<size_t>(width), seed + 2);
  }

  [[nodiscard]] LayerNormArgs args(CaseMemory& memory) const {
    LayerNormArgs result;
    result.x = matrix().view(in, memory.put_as(in, x()));
    if (adds) {
      result.add = matrix().view(out, memory.put_as(out, add()));
    }
    result.weight = make_view<const float>(memory.put(weight()), width);
    if (biased) {
      result.bias = make_view<const float>(memory.put(bias()), width);
    }
    result.out = matrix().view(out, matrix().put_unwritten(memory, out));
    result.eps = eps;
    return result;
  }
  // The whole output buffer, including the gaps.
  [[nodiscard]] std::vector<double> reference() const {
    const std::vector<float> first = x();
    const std::vector<float> second = add();
    const std::vector<float> weights = weight();
    const std::vector<float> biases = bias();
    std::vector<double> result = matrix().unwritten();
    std::vector<double> row(static_cast<size_t>(width));
    for (int64_t t = 0; t < rows; ++t) {
      const auto at = static_cast<size_t>(t * matrix().stride());
      double mean = 0.0;
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = double{first[at + i]} + (adds ? double{second[at + i]} : 0.0);
        mean += row[i] / static_cast<double>(width);
      }
      double variance = 0.0;
      for (const double v : row) {
        variance += (v - mean) * (v - mean) / static_cast<double>(width);
      }
      const double factor = 1.0 / std::sqrt(variance + double{eps});
      for (size_t i = 0; i < row.size(); ++i) {
        result[at + i] =
            (row[i] - mean) * factor * double{weights[i]} + (biased ? double{biases[i]} : 0.0);
      }
    }
    return result;
  }
};

struct GeluInPlaceCase {
  int64_t rows = 1;
  int64_t width = 1;
  DType type = DType::kF32;
  int64_t gap = 0;
  bool exact = true;
  uint32_t seed = 5;

  [[nodiscard]] CaseMatrix matrix() const { return {rows, width, gap}; }
  [[nodiscard]] std::vector<float> x() const {
    std::vector<float> values = normals(matrix().size(), seed, 2.0F);
    for (size_t i = 7; i < values.size(); i += 20) {
      values[i] *= 30.0F;
    }
    return rounded_to(type, std::move(values));
  }
  [[nodiscard]] GeluArgs args(CaseMemory& memory) const {
    return {matrix().view(type, memory.put_as(type, x())), exact};
  }
  [[nodiscard]] std::vector<double> reference() const {
    const std::vector<float> values = x();
    std::vector<double> result(values.begin(), values.end());
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < width; ++i) {
        double& v = result[static_cast<size_t>(t * matrix().stride() + i)];
        const double u = std::sqrt(2.0 / std::acos(-1.0)) * (v + 0.044715 * v * v * v);
        v = exact ? v / 2 * std::erfc(-v * std::sqrt(0.5)) : v / 2 * (1.0 + std::tanh(u));
      }
    }
    return result;
  }
};

struct PlaceEmbeddingCase {
  int64_t toks = 7;
  int64_t width = 1;
  bool has_positions = true;
  bool has_segments = true;
  int32_t first_position = 2;

  static constexpr int32_t kPositions = 9;
  static constexpr int32_t kSegments = 2;

  // The last token has a segment and a position that the tables do not have.
  [[nodiscard]] std::vector<int32_t> ids() const {
    std::vector<int32_t> out;
    for (int32_t t = 0; t < toks; ++t) {
      out.push_back(100 + t + ((t + 1 == toks ? kSegments : t % kSegments) << kSegmentShift));
    }
    return out;
  }
  [[nodiscard]] std::vector<int32_t> positions() const {
    std::vector<int32_t> out;
    for (int32_t t = 0; t < toks; ++t) {
      out.push_back(t + 1 == toks ? kPositions : t * 3 % (kPositions - first_position));
    }
    return out;
  }
  [[nodiscard]] std::vector<float> x() const {
    return normals(static_cast<size_t>(toks * width), 11);
  }
  [[nodiscard]] std::vector<float> table(int32_t rows) const {
    return normals(static_cast<size_t>(rows * width), static_cast<uint32_t>(rows));
  }
  [[nodiscard]] PlaceEmbeddingArgs args(CaseMemory& memory) const {
    PlaceEmbeddingArgs result;
    result.ids = make_view<const int32_t>(memory.put(ids()), toks);
    result.positions = make_view<const int32_t>(memory.put(positions()), toks);
    if (has_positions) {
      result.positions_table =
          make_view<const float>(memory.put(table(kPositions)), kPositions, width);
    }
    if (has_segments) {
      result.segments_table =
          make_view<const float>(memory.put(table(kSegments)), kSegments, width);
    }
    result.x = make_view(memory.put(x()), toks, width);
    result.first_position = first_position;
    return result;
  }
  // In float32, in the operation's order.
  [[nodiscard]] std::vector<double> reference() const {
    std::vector<float> result = x();
    const std::vector<float> of_positions = table(kPositions);
    const std::vector<float> of_segments = table(kSegments);
    for (int64_t t = 0; t + 1 < toks; ++t) {
      const int64_t position = positions()[static_cast<size_t>(t)] + first_position;
      for (int64_t i = 0; i < width; ++i) {
        float& v = result[static_cast<size_t>(t * width + i)];
        v += has_positions ? of_positions[static_cast<size_t>(position * width + i)] : 0.0F;
        v += has_segments ? of_segments[static_cast<size_t>(t % kSegments * width + i)] : 0.0F;
      }
    }
    return {result.begin(), result.end()};
  }
};

struct ResizeHeadsCase {
  int64_t rows = 3;
  int64_t from = 1;
  int64_t to = 1;
  DType type = DType::kF32;
  int64_t gap = 3;

  static constexpr int32_t kHeads = 5;

  [[nodiscard]] CaseMatrix input() const { return {rows, kHeads * from, gap}; }
  [[nodiscard]] CaseMatrix output() const { return {rows, kHeads * to, gap}; }
  [[nodiscard]] std::vector<float> x() const {
    return rounded_to(type, normals(input().size(), 19));
  }
  [[nodiscard]] ResizeHeadsArgs args(CaseMemory& memory) const {
    return {input().view(type, memory.put_as(type, x())),
            output().view(type, output().put_unwritten(memory, type)),
            kHeads};
  }
  [[nodiscard]] std::vector<double> reference() const {
    const std::vector<float> values = x();
    std::vector<double> result = output().unwritten();
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < kHeads * to; ++i) {
        const int64_t at = t * input().stride() + i / to * from + i % to;
        result[static_cast<size_t>(t * output().stride() + i)] =
            i % to < from ? double{values[static_cast<size_t>(at)]} : 0.0;
      }
    }
    return result;
  }
};

// Ranges of 0, 1, 4, 9 ... rows.
struct MeanRowsCase {
  int64_t ranges = 9;
  int64_t width = 1;
  DType type = DType::kF32;
  int64_t gap = 0;

  [[nodiscard]] std::vector<int32_t> starts() const {
    std::vector<int32_t> out{0};
    for (int32_t r = 0; r < ranges; ++r) {
      out.push_back(out.back() + r * r % 40);
    }
    return out;
  }
  [[nodiscard]] CaseMatrix matrix() const { return {starts().back(), width, gap}; }
  [[nodiscard]] std::vector<float> x() const {
    return rounded_to(type, normals(matrix().size(), 17, 3.0F));
  }
  [[nodiscard]] MeanRowsArgs args(CaseMemory& memory) const {
    return {
        matrix().view(type, memory.put_as(type, x())),
        make_view<const int32_t>(memory.put(starts()), ranges + 1),
        make_view(
            memory.put(std::vector<float>(static_cast<size_t>(ranges * width))), ranges, width)};
  }
  // Rounded to float32, as the operation does.
  [[nodiscard]] std::vector<double> reference() const {
    const std::vector<float> values = x();
    const std::vector<int32_t> from = starts();
    std::vector<double> result;
    for (size_t r = 0; r + 1 < from.size(); ++r) {
      for (int64_t i = 0; i < width; ++i) {
        double sum = 0.0;
        for (int64_t t = from[r]; t < from[r + 1]; ++t) {
          sum += double{values[static_cast<size_t>(t * matrix().stride() + i)]};
        }
        result.push_back(static_cast<float>(sum / std::max(1, from[r + 1] - from[r])));
      }
    }
    return result;
  }
};

}  // namespace warprow::testing
