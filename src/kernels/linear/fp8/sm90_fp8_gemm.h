// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/linear/fp8/round_inputs.h"
#include "kernels/linear/packed_weight.h"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// How a product of e4m3 numbers is split.
struct Sm90Fp8Plan {
  int32_t cols = 8;       // rows of x in a block, padded: 8, 16, 32, 64 or 128
  int32_t groups = 1;     // of 64 rows of w in a tile; 2 only with 128 cols and parts of k
  int32_t split = 1;      // CTAs that share a tile, each with a part of k
  int32_t stages = 2;     // of the ring, of 128 inputs each
  bool rounds = false;    // one row of x in bf16, which every CTA rounds itself
  bool resident = false;  // a CTA an SM takes tile after tile: 128 cols, split 1
};

// The parts of k that are summed apart and then added in order. A function of the matrix alone.
int32_t sm90_fp8_parts(int32_t n, int32_t k);
// The fastest plan. weight: without data. rows: of x. split 0: sm90_fp8_parts. few_bytes: shared memory
// of an SM that CTAs of up to 16 columns take together. More of it is slower (docs/experiments/linears_cuda.md).
inline constexpr int32_t kSm90Fp8FewBytes = 190 * 1024;
Sm90Fp8Plan sm90_fp8_plan(const PackedWeight& weight,
                          int32_t rows,
                          int32_t num_sms,
                          int32_t split = 0,
                          int32_t few_bytes = kSm90Fp8FewBytes);
// Estimated microseconds on an H200 of a plan with 128 columns.
double sm90_fp8_us(const Sm90Fp8Plan& plan, int32_t rows, int32_t n, int32_t k, int32_t num_sms);
// Bytes of a stage of the ring; where other CTAs' sums, or a resident CTA's own, and the rounded row begin in shared memory;
// bytes of a CTA.
int32_t sm90_fp8_stage_bytes(const Sm90Fp8Plan& plan);
int32_t sm90_fp8_parts_at(const Sm90Fp8Plan& plan);
int32_t sm90_fp8_row_at(const Sm90Fp8Plan& plan);
size_t sm90_fp8_shared_bytes(const Sm90Fp8Plan& plan, int32_t k);

struct Sm90Fp8Args {
  // w: in units (fp8_tiles.h). x: with plan.rounds one row in bf16, with squares and norm_eps of its norm; else not used.
  Sm90GemmArgs a;
  F8Rows x;
};

// The same operation as sm90_bf16_gemm_small_m with an e4m3 matrix (PackedKind::kF8F8) and rounded inputs, for any number of
// rows.
void sm90_fp8_gemm(Stream& stream,
                   const Sm90Fp8Args& args,
                   const PackedWeight& weight,
                   const Sm90Fp8Plan& plan);

// Instances of the kernel for each width (cmake/stubs.cmake).
template <int kCols, bool kRounds, int kGroups>
void launch_sm90_fp8(Stream& stream,
                     const Sm90Fp8Args& args,
                     const PackedWeight& weight,
                     const Sm90Fp8Plan& plan);

}  // namespace warprow::cuda
