// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/linear/linear.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// The most rows of x that the skinny kernel takes.
inline constexpr int32_t kMaxSkinnyRows = 32;

// One bf16 matrix product of a few rows with a decoder's norm before and epilogue behind it
// (linear.h has the formulas), on raw pointers.
struct SkinnyArgs {
  const void* w = nullptr;             // bf16 [n, k]
  const void* x = nullptr;             // bf16 [m, k], 16-byte aligned rows; f32 with norm_weight
  int64_t x_stride = 0;                // elements
  const float* norm_weight = nullptr;  // [k] or null
  float norm_eps = 0.0F;
  const float* bias = nullptr;  // [n] or null
  void* y = nullptr;            // [m, n], or [m, n / 2] for kSwiGlu
  int64_t y_stride = 0;         // elements
  bool y_f32 = false;           // else bf16
  LinearEpilogue epilogue = LinearEpilogue::kStore;
  int32_t m = 0;
  int32_t n = 0;
  int32_t k = 0;  // a multiple of 8
};

// How a product is cut; a pure function of sizes (skinny_plan), so that it can be tested and tuned.
struct SkinnyPlan {
  int32_t tile_rows = 16;  // rows of w a block works on at a time: 8, 16 or 32
  int32_t row_groups = 1;  // groups of 8 rows of x: 1, 2 or 4
  int32_t stages = 4;      // depth of each warp's ring of weight chunks
  int32_t l2_chunks = 0;   // chunks a warp asks into L2 beyond its ring before it waits
  int32_t num_tiles = 0;
  int32_t num_blocks = 0;
  bool stage_x = true;  // x goes through shared memory once; else chunks are read as needed
  size_t shared_bytes = 0;
};

SkinnyPlan skinny_plan(const SkinnyArgs& args, int32_t num_sms);
// Fills in the numbers that follow from tile_rows, row_groups, stage_x and stages (0: as many as fit).
void finish_plan(SkinnyPlan& plan, const SkinnyArgs& args, int32_t num_sms);

// Whether x with its norm can be done inside: all of x must fit into shared memory.
bool skinny_takes_norm(int32_t m, int32_t k);

void skinny(Stream& stream, const SkinnyArgs& args);
void skinny(Stream& stream, const SkinnyArgs& args, const SkinnyPlan& plan);

// One instance of the kernel each (skinny_<tile_rows>_cuda.cu).
template <int kTileRows, int kRowGroups>
void launch_skinny(Stream& stream, const SkinnyArgs& args, const SkinnyPlan& plan);

}  // namespace warprow::cuda
