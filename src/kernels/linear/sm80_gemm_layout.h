// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

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

}  // namespace warprow::cuda
