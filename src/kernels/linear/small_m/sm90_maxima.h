// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/stream.h"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <cstdint>

namespace warprow::cuda {

// What kernels with the epilogue kMax take.
inline void check_maxima(const Sm90GemmArgs& args) {
  WR_CHECK(args.epilogue == LinearEpilogue::kMax && args.maxima != nullptr);
  WR_CHECK(args.squares == nullptr && args.next_weight == nullptr && args.bias == nullptr);
  WR_CHECK_EQ(args.n % kMaxOutputs, 0);
}

// The epilogue kMax for up to kMaxSm90GemmRows rows of a product without norms, bias and parts of k, n a multiple of
// kMaxOutputs. The values are those of sm90_bf16_gemm_small_m with a split of 1, bit for bit.
void sm90_bf16_gemm_maxima(Stream& stream, const Sm90GemmArgs& args);

// One instance of the kernel for each number of columns (cmake/stubs.cmake).
template <int kCols>
void launch_sm90_maxima(Stream& stream, const Sm90GemmArgs& args);

}  // namespace warprow::cuda
