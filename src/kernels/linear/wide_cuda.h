// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// The most rows of x that the wide kernel takes.
inline constexpr int32_t kMaxWideRows = 128;

// y = x * w^T + bias, or y += it, bf16 operands, for some dozens of rows of x; on raw pointers.
struct WideArgs {
  const void* w = nullptr;      // bf16 [n, k], 16-byte aligned
  const void* x = nullptr;      // bf16 [m, k], 16-byte aligned rows
  int64_t x_stride = 0;         // elements, a multiple of 8
  const float* bias = nullptr;  // [n] or null
  void* y = nullptr;            // [m, n]
  int64_t y_stride = 0;         // elements
  bool y_f32 = false;           // else bf16
  bool add = false;             // y +=; float32
  int32_t m = 0;
  int32_t n = 0;
  int32_t k = 0;  // a multiple of 8
};

// How a product is cut.
struct WidePlan {
  int32_t cols = 32;   // m, padded: 32, 64 or 128
  int32_t split = 1;   // blocks of a cluster that share a tile, each with a part of k: 1, 2, 4 or 8
  int32_t stages = 4;  // of the ring, 2 to kMaxWideStages
  size_t shared_bytes = 0;
};

inline constexpr int32_t kMaxWideStages = 16;
inline constexpr int32_t kMaxWideSplit = 8;

// The most rows with which the kernel beats the others, 0 where it never does or the device lacks it.
int32_t wide_rows(int32_t n, int32_t k);

WidePlan wide_plan(int32_t m, int32_t n, int32_t k);
// The rest of a plan that has cols and split; stages becomes what is useful and fits into so much
// shared memory.
void finish_plan(WidePlan& plan, int32_t k, int32_t shared_bytes);

void wide(Stream& stream, const WideArgs& args);
void wide(Stream& stream, const WideArgs& args, const WidePlan& plan);

// The kernel's launch (wide_sm90_cuda.cu), for cols of 32, 64 and 128.
template <int kCols>
void launch_wide(Stream& stream, const WideArgs& args, const WidePlan& plan);

}  // namespace warprow::cuda
