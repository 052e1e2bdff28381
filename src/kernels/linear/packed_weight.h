// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace warprow {

// How a weight matrix lies in device memory.
//  kF32/kF16/kBF16: plain values.
//  kQ4/kQ8: w[n, k] = scale[n, k / group] * (stored[n, k] - zero_point) (+ bias[n, k / group]);
//  stored is u4 or s8.
enum class PackedKind : uint8_t { kF32, kF16, kBF16, kQ4, kQ8 };

// One packed matrix W [n, k] (n outputs, k inputs). The CPU layout interleaves 16 outputs (a panel)
// so that one vector register holds one input's weights of 16 outputs; see linear/pack.h. n is
// padded to 16 with zeros.
struct PackedWeight {
  PackedKind kind = PackedKind::kF32;
  bool has_bias = false;    // quantised: per-group bias present
  bool f16_scales = false;  // quantised: scale and bias stored as IEEE half, else f32
  int32_t zero_point = 0;   // kQ4: 8 or 0
  int32_t group = 32;       // quantised: inputs per scale, 16 or 32
  int32_t n = 0;
  int32_t k = 0;
  const std::byte* data = nullptr;
};

}  // namespace warprow
