// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "device/stream.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// The maximum number of rows of x of sm90_bf16_gemm_warps.
inline constexpr int32_t kMaxSm90WarpRows = 8;

// Sizes shared by the kernel and its planner.
inline constexpr int kSm90WarpUnit = 16;  // rows of w that a warp multiplies at a time
inline constexpr int kMaxSm90Warps = 12;  // of a CTA, without the warp that computes row scales
inline constexpr int kSm90WarpSteps = 4;  // of 64 inputs, in a stage
inline constexpr int kMaxSm90WarpStages = 16;

// How a product is split. A group of `parts` warps has 16 rows of w, each warp a part of k.
struct Sm90WarpPlan {
  int32_t parts = 1;      // 1, 2, 4 or 8
  int32_t groups = 1;     // in a CTA
  int32_t stages = 2;     // of each warp's ring, of 256 inputs
  int32_t num_units = 0;  // 16 rows of w each
  int32_t num_blocks = 0;
};

// Up to this many rows the kernel is the fastest.
constexpr int32_t sm90_warp_rows(int64_t k) { return k % 64 == 0 ? kMaxSm90WarpRows : 0; }

// Shared memory for a CTA's rings. A product whose bytes rings cannot hold waits for memory, and takes all. Another one leaves
// room for the kernel behind it, whose loads then begin early.
int32_t sm90_warp_room(int32_t n, int32_t k, LinearEpilogue epilogue, int32_t num_sms);
// The fastest plan with this many parts. outputs of kSwiGlu: n / 2. shared_bytes: of a CTA; 0: sm90_warp_room.
Sm90WarpPlan sm90_warp_plan(int32_t m,
                            int32_t n,
                            int32_t k,
                            LinearEpilogue epilogue,
                            int32_t parts,
                            int32_t num_sms,
                            int32_t shared_bytes = 0);
// Bytes of a stage's rows of x. Stages need not be aligned to 1024 bytes: TMA derives its swizzle from the address.
WR_HD constexpr int32_t sm90_warp_x_bytes(int32_t m) { return m * kSm90WarpSteps * 128; }
size_t sm90_warp_shared_bytes(const Sm90WarpPlan& plan, int32_t m);

// Where a unit's rows of w are, as coordinates of the tensor map, and its outputs. A unit has 16 adjacent outputs, or 8
// with their gates. For the first half of a norm it has four times four outputs that are 16 apart: their squares are one
// quarter of a sum of squares (quarter_of_squares, finish.cuh).
struct Sm90WarpUnit {
  int32_t row;     // of w, within a block of rows
  int32_t block;   // of 16 rows; else 0
  int32_t output;  // the first
  int32_t stride;  // from four outputs to the next four
};
WR_HD constexpr Sm90WarpUnit sm90_warp_unit(int32_t unit, bool gate, bool leaves_norm) {
  if (leaves_norm) {
    return {unit % 4 * 4, unit / 4 * 4, unit / 4 * 64 + unit % 4 * 4, 16};
  }
  const int32_t first = unit * (gate ? kSm90WarpUnit / 2 : kSm90WarpUnit);
  return {first, 0, first, 4};
}

// The same operation as sm90_bf16_gemm_small_m for up to 8 rows and k a multiple of 64, with the same bits if its split is
// `parts`.
void sm90_bf16_gemm_warps(Stream& stream, const Sm90GemmArgs& args, const Sm90WarpPlan& plan);

}  // namespace warprow::cuda
