// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// Sizes that the skinny kernel and its planner share.

inline constexpr int kSkinnyWarps = 8;
inline constexpr int kSkinnyThreads = kSkinnyWarps * 32;
inline constexpr int kSkinnyChunk = 64;  // inputs: 128 bytes of a row of w
inline constexpr int kSkinnyMaxStages = 12;
inline constexpr int kSkinnyMaxShared = 160 * 1024;  // what an A100 gives a block; an H200 has more

WR_HD constexpr int skinny_chunks(int k) { return (k + kSkinnyChunk - 1) / kSkinnyChunk; }

// Bytes from one row of x in shared memory to the next: half a line more than whole chunks, so that
// two neighbouring rows lie in different banks.
WR_HD constexpr int skinny_x_pitch(int k) { return skinny_chunks(k) * kSkinnyChunk * 2 + 64; }

}  // namespace warprow::cuda
