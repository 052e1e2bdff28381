// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "layers/row_order.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/group_weights.h"
#include "tests/support/temp_dir.h"
#include "tests/weights/gguf_blocks.h"
#include "weights/checkpoint.h"
#include "weights/dequantize.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace warprow::test {

// A GGUF file with a matrix [rows, cols] of every format, named after the format, a bf16 matrix that exceeds one upload
// piece ("large"), and the vectors "norm" and "bias".
class MixedCheckpoint {
 public:
  static constexpr int64_t kRows = 96;
  static constexpr int64_t kCols = 512;
  static constexpr int64_t kLargeRows = 9001;
  static constexpr int32_t kHeadDim = 16;

  MixedCheckpoint() : path_(write(dir_)), checkpoint_(value_or_throw(open(path_))) {}

  [[nodiscard]] const Checkpoint& checkpoint() const { return checkpoint_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  // The tensor's rows in float32, in row-major order.
  [[nodiscard]] std::vector<float> expected_f32(const std::string& name, RowOrder order) const {
    const TensorSource& tensor = *value_or_throw(checkpoint_.require(name));
    std::vector<float> out(static_cast<size_t>(tensor.rows * tensor.cols));
    for (int64_t i = 0; i < tensor.rows; ++i) {
      const auto from = static_cast<size_t>(source_row(order, i, kHeadDim));
      dequantize_row(tensor.type,
                     tensor.data + from * tensor.row_bytes,
                     out.data() + i * tensor.cols,
                     tensor.cols);
    }
    return out;
  }
  // The same in bf16.
  [[nodiscard]] std::vector<uint16_t> expected(const std::string& name, RowOrder order) const {
    const std::vector<float> values = expected_f32(name, order);
    std::vector<uint16_t> out(values.size());
    std::transform(values.begin(), values.end(), out.begin(), f32_to_bf16);
    return out;
  }
  // The same as kernels take it from tiles. table: these have places in a table.
  [[nodiscard]] std::vector<uint16_t> expected_tiles(const std::string& name,
                                                     RowOrder order,
                                                     bool table) const {
    const TensorSource& tensor = *value_or_throw(checkpoint_.require(name));
    std::vector<uint16_t> out;
    for (int64_t i = 0; i < tensor.rows; ++i) {
      const auto from = static_cast<size_t>(source_row(order, i, kHeadDim));
      const std::vector<uint16_t> row =
          group_weights(tensor.type, tensor.data + from * tensor.row_bytes, tensor.cols, table);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }
  // The names of the matrices.
  [[nodiscard]] std::vector<std::string> matrices() const {
    std::vector<std::string> names;
    for (const TensorSource& tensor : checkpoint_.tensors()) {
      if (tensor.rows > 1) {
        names.push_back(tensor.name);
      }
    }
    return names;
  }

 private:
  static Result<Checkpoint> open(const std::string& path) {
    return Checkpoint::open({ModelFiles::Kind::kGguf, path, "mixed"});
  }

  static std::string write(const TempDir& dir) {
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    // Long ones repeat, after a number of values that divides no row.
    const auto floats = [&](int64_t n) {
      constexpr size_t kStretch = 65537;
      std::vector<float> values(static_cast<size_t>(n));
      const size_t drawn = std::min(values.size(), kStretch);
      std::generate_n(values.begin(), drawn, [&] { return normal(rng); });
      for (size_t i = drawn; i < values.size(); ++i) {
        values[i] = values[i - drawn];
      }
      return values;
    };
    const auto bf16_floats = [&](int64_t n) {
      const std::vector<float> values = floats(n);
      auto next = values.begin();
      return bf16_bytes(values.size(), [&] { return *next++; });
    };
    const std::vector<uint64_t> ne{kCols, kRows};
    GgufWriter writer;
    writer.add("general.architecture", "llama");
    writer.add_f32("F32", ne, floats(kRows * kCols));
    writer.add_f16("F16", ne, floats(kRows * kCols));
    writer.add_tensor("BF16", GgmlType::kBF16, ne, bf16_floats(kRows * kCols));
    for (const GgufBlocks& blocks : load_gguf_blocks()) {
      add_blocks(writer, blocks, ne);
    }
    writer.add_tensor(
        "large", GgmlType::kBF16, {kCols, kLargeRows}, bf16_floats(kLargeRows * kCols));
    writer.add_f32("norm", {kCols}, floats(kCols));
    writer.add_f32("bias", {kRows}, floats(kRows));
    return dir.write("mixed.gguf", writer.bytes());
  }

  // Fills a matrix with valid blocks. Each row starts with another one.
  static void add_blocks(GgufWriter& writer,
                         const GgufBlocks& blocks,
                         const std::vector<uint64_t>& ne) {
    for (int i = 0; i < kNumValueTypes; ++i) {
      const auto format = static_cast<TensorType>(i);
      const TensorTypeTraits& traits = tensor_type_traits(format);
      if (!is_quantised(format) || blocks.format != traits.name) {
        continue;
      }
      const auto block_bytes = static_cast<size_t>(traits.block_bytes);
      const size_t stored = blocks.blocks.size() / block_bytes;
      const auto wanted = static_cast<size_t>(kRows * kCols / traits.block_elems);
      Bytes bytes;
      for (size_t b = 0; b < wanted; ++b) {
        const auto from =
            blocks.blocks.begin() + static_cast<int64_t>(b * 7 % stored * block_bytes);
        bytes.insert(bytes.end(), from, from + traits.block_bytes);
      }
      writer.add_tensor(blocks.format, type_of(format), ne, bytes);
    }
  }
  static GgmlType type_of(TensorType format) {
    for (int i = 0; i < 64; ++i) {
      const auto type = static_cast<GgmlType>(i);
      if (tensor_type_of(type) == format) {
        return type;
      }
    }
    return GgmlType::kF32;
  }

  TempDir dir_;
  std::string path_;
  Checkpoint checkpoint_;
};

}  // namespace warprow::test
