// SPDX-License-Identifier: Apache-2.0
#include "kernels/low_rank/low_rank_pack.h"

#include "base/math.h"
#include "kernels/low_rank/low_rank.h"

namespace warprow {
namespace {

constexpr int32_t kInputs = 32;  // of a block of A
constexpr int32_t kLaneElems = 8;
constexpr int32_t kStepElems = 32 * kLaneElems;

}  // namespace

size_t low_rank_a_bytes(DType dtype, int32_t max_rank, int32_t k) {
  const int32_t inputs = dtype == DType::kF32 ? k : ceil_div(k, kInputs) * kInputs;
  return static_cast<size_t>(max_rank) * static_cast<size_t>(inputs) * dtype_bytes(dtype);
}

size_t low_rank_b_bytes(DType dtype, int32_t max_rank, int32_t n) {
  const int32_t columns = dtype == DType::kF32 ? n : ceil_div(n, kLowRankColumns) * kLowRankColumns;
  return static_cast<size_t>(max_rank) * static_cast<size_t>(columns) * dtype_bytes(dtype);
}

void pack_low_rank_a(DType dtype, int32_t rank, int32_t k, const float* a, std::byte* to) {
  const auto at = [&](int32_t r, int32_t i) {
    return r < rank && i < k ? a[static_cast<int64_t>(r) * k + i] : 0.0F;
  };
  if (dtype == DType::kF32) {
    auto* out = reinterpret_cast<float*>(to);
    for (int64_t i = 0; i < int64_t{rank} * k; ++i) {
      out[i] = a[i];
    }
    return;
  }
  auto* out = reinterpret_cast<uint16_t*>(to);
  const int32_t blocks = ceil_div(k, kInputs);
  for (int32_t tile = 0; tile < ceil_div(rank, kRankTile); ++tile) {
    for (int32_t step = 0; step < 2 * blocks; ++step, out += kStepElems) {
      for (int32_t lane = 0; lane < 32; ++lane) {
        const int32_t row = tile * kRankTile + lane / 4;
        const int32_t input = step / 2 * kInputs + lane % 4 * 8 + step % 2 * 4;
        for (int32_t e = 0; e < kLaneElems; ++e) {
          // Registers: (g, low), (g + 8, low), (g, high), (g + 8, high).
          out[lane * kLaneElems + e] =
              f32_to_bf16(at(row + e / 2 % 2 * 8, input + e / 4 * 2 + e % 2));
        }
      }
    }
  }
}

void pack_low_rank_b(
    DType dtype, int32_t rank, int32_t n, const float* b, float scale, std::byte* to) {
  const auto at = [&](int32_t column, int32_t r) {
    return r < rank && column < n ? b[static_cast<int64_t>(column) * rank + r] * scale : 0.0F;
  };
  if (dtype == DType::kF32) {
    auto* out = reinterpret_cast<float*>(to);
    for (int32_t r = 0; r < rank; ++r) {
      for (int32_t column = 0; column < n; ++column) {
        *out++ = at(column, r);
      }
    }
    return;
  }
  auto* out = reinterpret_cast<uint16_t*>(to);
  const int32_t blocks = ceil_div(n, kLowRankColumns);
  for (int32_t tile = 0; tile < ceil_div(rank, kRankTile); ++tile) {
    for (int32_t step = 0; step < 4 * blocks; ++step, out += kStepElems) {
      for (int32_t lane = 0; lane < 32; ++lane) {
        const int32_t column = step / 4 * kLowRankColumns + lane / 4 * 8 + step % 4 * 2;
        const int32_t r = tile * kRankTile + lane % 4 * 2;
        for (int32_t e = 0; e < kLaneElems; ++e) {
          out[lane * kLaneElems + e] = f32_to_bf16(at(column + e / 2 % 2, r + e / 4 * 8 + e % 2));
        }
      }
    }
  }
}

}  // namespace warprow
