// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/gguf_types.h"
#include "files/safetensors_dtype.h"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace warprow {

// How a weight tensor is stored. Quantised formats keep their ggml name and layout.
enum class WeightFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};
inline constexpr int kNumWeightFormats = 11;

struct WeightFormatTraits {
  const char* name;  // as ggml and safetensors print it
  int block_elems;   // consecutive elements of a row in one block; rows are whole blocks
  int block_bytes;
  int bits;   // of one stored element: 32, 16, 8, 6, 5, 4; the scales come on top
  int group;  // elements that share a scale; 0 for the plain formats
};

const WeightFormatTraits& weight_format_traits(WeightFormat format);
inline const char* weight_format_name(WeightFormat format) {
  return weight_format_traits(format).name;
}
inline bool is_quantised(WeightFormat format) { return weight_format_traits(format).group != 0; }

// Bytes of a row of `cols` elements; cols must be a multiple of block_elems.
size_t weight_row_bytes(WeightFormat format, int64_t cols);

// nullopt for the types that warprow knows by name only.
std::optional<WeightFormat> weight_format_of(GgmlType type);
std::optional<WeightFormat> weight_format_of(SafetensorsDtype dtype);

}  // namespace warprow
