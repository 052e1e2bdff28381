// SPDX-License-Identifier: Apache-2.0
#include "weights/dequantize.h"

#include "base/check.h"
#include "base/dtype.h"
#include "weights/quant_groups.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace warprow {
namespace {

// Elements decoded at a time: whole blocks of every format, and small enough for the first-level
// cache.
constexpr int64_t kChunk = 1024;

template <float (*kConvert)(uint16_t)>
void widen(const std::byte* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, src + i * 2, sizeof(half));
    dst[i] = kConvert(half);
  }
}

template <int kGroup>
void expand(const int8_t* __restrict q, float scale, float bias, float* __restrict dst) {
  for (int i = 0; i < kGroup; ++i) {
    dst[i] = scale * static_cast<float>(q[i]) + bias;
  }
}

void dequantize_groups(TensorType type, const std::byte* src, float* dst, int64_t n) {
  std::array<int8_t, kChunk> q;
  std::array<float, kChunk / 16> scale;
  std::array<float, kChunk / 16> bias;
  const int group = group_traits(type).group;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t len = std::min(kChunk, n - begin);
    decode_groups(type, src, len, q.data(), scale.data(), bias.data());
    for (int64_t i = 0; i < len; i += group) {
      const auto g = static_cast<size_t>(i / group);
      if (group == 32) {
        expand<32>(q.data() + i, scale[g], bias[g], dst + begin + i);
      } else {
        expand<16>(q.data() + i, scale[g], bias[g], dst + begin + i);
      }
    }
    src += tensor_row_bytes(type, len);
  }
}

}  // namespace

void dequantize_row(TensorType type, const std::byte* src, float* dst, int64_t n) {
  WR_CHECK_EQ(n % tensor_type_traits(type).block_elems, 0);
  switch (type) {
    case TensorType::kF32:
      std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      break;
    case TensorType::kF16:
      widen<&f16_to_f32>(src, dst, n);
      break;
    case TensorType::kBF16:
      widen<&bf16_to_f32>(src, dst, n);
      break;
    default:
      dequantize_groups(type, src, dst, n);
  }
}

void dequantize_mxfp4_row(const std::byte* numbers,
                          const std::byte* scales,
                          float* dst,
                          int64_t n) {
  std::array<int8_t, 32> q;
  for (int64_t i = 0; i < n; i += 32) {
    float scale = 0.0F;
    decode_mxfp4_groups(numbers + i / 2, scales + i / 32, 32, q.data(), &scale);
    expand<32>(q.data(), scale, -0.0F, dst + i);
  }
}

}  // namespace warprow
