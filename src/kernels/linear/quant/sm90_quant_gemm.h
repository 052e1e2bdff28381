// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/linear/packed_weight.h"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// How a product with a quantised matrix is split.
struct Sm90QuantPlan {
  int32_t cols = 8;    // rows of x in a block, padded: 8, 32, 64 or 128
  int32_t groups = 1;  // of 64 rows of w in a CTA: 1; 3 with 128 cols
  int32_t split = 1;   // CTAs that share a tile, each with a part of k
  int32_t stages = 2;  // of the ring, of 128 inputs each
};

// The parts of k that are summed apart and then added in order. A function of the matrix alone.
int32_t sm90_quant_parts(PackedKind kind, int32_t n, int32_t k);
// The fastest plan. weight: without data. rows: of x. split 0: sm90_quant_parts. groups 0: the better of 1 and 3.
Sm90QuantPlan sm90_quant_plan(const PackedWeight& weight,
                              int32_t rows,
                              int32_t num_sms,
                              int32_t split = 0,
                              int32_t groups = 0);
// Bytes of a stage of the ring; where other CTAs' sums begin in shared memory; bytes of a CTA.
int32_t sm90_quant_stage_bytes(const Sm90QuantPlan& plan, const PackedWeight& weight);
int32_t sm90_quant_parts_at(const Sm90QuantPlan& plan, const PackedWeight& weight);
size_t sm90_quant_shared_bytes(const Sm90QuantPlan& plan, const PackedWeight& weight);

// The same operation as sm90_bf16_gemm_small_m with a matrix in tiles (quant_tiles.h), for any number of rows. args.w, n and
// k are those of weight.
void sm90_quant_gemm(Stream& stream,
                     const Sm90GemmArgs& args,
                     const PackedWeight& weight,
                     const Sm90QuantPlan& plan);

// One instance of the kernel for each kind of numbers and width (cmake/stubs.cmake).
template <PackedKind kKind, int kCols, int kGroups>
void launch_sm90_quant(Stream& stream,
                       const Sm90GemmArgs& args,
                       const PackedWeight& weight,
                       const Sm90QuantPlan& plan);

}  // namespace warprow::cuda
