// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "device/device.h"
#include "device/stream.h"
#include "kernels/linear/linear.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// The maximum number of rows of x of sm80_bf16_gemm_small_m.
inline constexpr int32_t kMaxSm80GemmRows = 32;

// One bf16 GEMM of a few rows with a norm before it and an epilogue after it, on raw pointers. linear.h has
// the formulas.
struct Sm80GemmArgs {
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

// Sizes shared by sm80_bf16_gemm_small_m and its planner.

inline constexpr int kSm80GemmWarps = 8;  // of a team
inline constexpr int kSm80GemmThreads = kSm80GemmWarps * 32;
inline constexpr int kSm80GemmMaxTeams = 2;  // of a CTA
inline constexpr int kSm80GemmChunk = 128;   // inputs: 256 bytes of a row
inline constexpr int kSm80GemmChunkBytes = kSm80GemmChunk * 2;
inline constexpr int kSm80GemmMaxStages = 4;

WR_HD constexpr int sm80_gemm_chunks(int k) { return (k + kSm80GemmChunk - 1) / kSm80GemmChunk; }

// Bytes of a stage: a chunk of a tile of w, and without a norm the chunk of m rows of x.
WR_HD constexpr int sm80_gemm_stage_bytes(int tile_rows, int m, bool norm) {
  return (tile_rows + (norm ? 0 : m)) * kSm80GemmChunkBytes;
}

// How a product is split into tiles. The first three fields are chosen; finish_plan derives the others.
struct Sm80GemmPlan {
  int32_t tile_rows = 16;  // rows of w in a team's tile: 16 or 32
  int32_t num_teams = 2;   // teams of 8 warps in a CTA: 1 or 2
  int32_t stages = 1;      // depth of each warp's ring of chunks, up to kSm80GemmMaxStages
  int32_t row_groups = 0;  // groups of 8 rows of x: 1, 2 or 4
  int32_t num_tiles = 0;
  int32_t num_blocks = 0;
  size_t shared_bytes = 0;
};

Sm80GemmPlan sm80_gemm_plan(const Sm80GemmArgs& args, const DeviceFacts& device);
// Completes a plan whose first three fields are given. Reduces stages to what fits; 0 if nothing fits. The
// result of the product does not depend on the plan, except for the norm's sum of squares.
void finish_plan(Sm80GemmPlan& plan, const Sm80GemmArgs& args, const DeviceFacts& device);

// Whether fusing the norm pays, although every CTA repeats it.
bool sm80_gemm_takes_norm(int32_t m, int32_t k);

void sm80_bf16_gemm_small_m(Stream& stream, const Sm80GemmArgs& args);
void sm80_bf16_gemm_small_m(Stream& stream, const Sm80GemmArgs& args, const Sm80GemmPlan& plan);

// One instance of the kernel for each pair (cmake/stubs.cmake).
template <int kTileRows, int kRowGroups>
void launch_sm80_gemm(Stream& stream, const Sm80GemmArgs& args, const Sm80GemmPlan& plan);

}  // namespace warprow::cuda
