// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "weights/dequantize.h"
#include "weights/quant_groups.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace warprow::test {

// Zeros without a sign, which no sum tells apart.
inline std::vector<uint16_t> with_plain_zeros(std::vector<uint16_t> weights) {
  std::replace(weights.begin(), weights.end(), uint16_t{0x8000}, uint16_t{0});
  return weights;
}

// The weights that kernels take from tiles of n elements of a GGUF type, with plain zeros: scales and biases are rounded to bf16, of
// tables not.
inline std::vector<uint16_t> group_weights(TensorType type,
                                           const std::byte* src,
                                           int64_t n,
                                           bool table) {
  std::vector<uint16_t> out(static_cast<size_t>(n));
  if (table || !is_quantised(type)) {
    std::vector<float> values(out.size());
    dequantize_row(type, src, values.data(), n);
    std::transform(values.begin(), values.end(), out.begin(), f32_to_bf16);
    return with_plain_zeros(std::move(out));
  }
  const auto rounded = [](float v) { return bf16_to_f32(f32_to_bf16(v)); };
  const auto group = static_cast<size_t>(group_traits(type).group);
  std::vector<int8_t> q(out.size());
  std::vector<float> scale(out.size() / group);
  std::vector<float> bias(scale.size());
  decode_groups(type, src, n, q.data(), scale.data(), bias.data());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] =
        quant_weight(static_cast<float>(q[i]), rounded(scale[i / group]), rounded(bias[i / group]));
  }
  return with_plain_zeros(std::move(out));
}

}  // namespace warprow::test
