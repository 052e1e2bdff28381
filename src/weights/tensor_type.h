// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/gguf_types.h"
#include "files/safetensors_dtype.h"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace warprow {

// How one tensor is stored. Quantised types keep their ggml name and layout. The first are values
// by themselves; the others mean something only beside further tensors (packed weights, scales in 8
// bits, zero points) and are handed out as bytes.
enum class TensorType : uint8_t {
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
  kMXFP4,
  kQ2_K,
  kQ3_K,
  kIQ4_NL,
  kIQ4_XS,
  kIQ3_XXS,
  kIQ3_S,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ1_S,
  kIQ1_M,
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
};
inline constexpr int kNumValueTypes = 23;
inline constexpr int kNumTensorTypes = 35;

struct TensorTypeTraits {
  const char* name;  // as ggml and safetensors print it
  int block_elems;   // consecutive elements of a row in one block; rows are whole blocks
  int block_bytes;
  int bits;   // of one stored element; the scales come on top
  int group;  // elements that share a scale; 0 for the types without scales of their own
};

const TensorTypeTraits& tensor_type_traits(TensorType type);
inline const char* tensor_type_name(TensorType type) { return tensor_type_traits(type).name; }
inline bool is_quantised(TensorType type) { return tensor_type_traits(type).group != 0; }
// Whether dequantize_row turns it into floats.
inline bool has_values(TensorType type) { return static_cast<int>(type) < kNumValueTypes; }

// Bytes of a row of `cols` elements; cols must be a multiple of block_elems.
size_t tensor_row_bytes(TensorType type, int64_t cols);

// nullopt for the types that warprow knows by name only.
std::optional<TensorType> tensor_type_of(GgmlType type);
std::optional<TensorType> tensor_type_of(SafetensorsDtype dtype);

}  // namespace warprow
