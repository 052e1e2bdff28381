// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// Sizes that the skinny kernel and its planner share.

inline constexpr int kSkinnyWarps = 8;  // of a team
inline constexpr int kSkinnyThreads = kSkinnyWarps * 32;
inline constexpr int kSkinnyMaxTeams = 2;  // of a block
inline constexpr int kSkinnyChunk = 128;   // inputs: 256 bytes of a row
inline constexpr int kSkinnyChunkBytes = kSkinnyChunk * 2;
inline constexpr int kSkinnyMaxStages = 4;

WR_HD constexpr int skinny_chunks(int k) { return (k + kSkinnyChunk - 1) / kSkinnyChunk; }

// A chunk of a tile of w, and without a norm those of m rows of x.
WR_HD constexpr int skinny_stage_bytes(int tile_rows, int m, bool norm) {
  return (tile_rows + (norm ? 0 : m)) * kSkinnyChunkBytes;
}

}  // namespace warprow::cuda
