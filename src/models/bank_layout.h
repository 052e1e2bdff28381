// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/low_rank/low_rank.h"
#include "layers/linear_delta.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// Where the matrices of one adapter lie in its bank (kernels/low_rank): the ranks of all parts of all sites, then A and B of
// each, with room for the largest rank.
struct BankLayout {
  DType dtype = DType::kF32;
  int32_t max_rank = 0;  // a multiple of kRankTile
  int64_t bytes = 0;
  std::vector<LowRankProduct> products;  // by site
  int32_t most_parts = 0;                // of a site
  int32_t most_chunks = 0;               // LowRankCut
};

// dtype: kF32, or on a GPU kBF16. kUnsupported for a site whose sizes the kernels do not take.
Result<BankLayout> make_bank_layout(std::span<const LinearSite> sites,
                                    DType dtype,
                                    int32_t max_rank);

}  // namespace warprow
