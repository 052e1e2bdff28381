// SPDX-License-Identifier: Apache-2.0
#include "models/bank_layout.h"

#include "base/math.h"
#include "kernels/low_rank/low_rank_pack.h"

#include <algorithm>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr int64_t kAlignment = 256;

// Vectors of eight elements, as tiles on a GPU need them.
bool fits_tiles(const LinearSite& site) {
  return site.k % 8 == 0 && std::ranges::all_of(site.parts, [](const LinearSitePart& part) {
           return part.rows % 8 == 0 && part.y_col % 8 == 0;
         });
}

}  // namespace

Result<BankLayout> make_bank_layout(std::span<const LinearSite> sites,
                                    DType dtype,
                                    int32_t max_rank) {
  BankLayout layout;
  layout.dtype = dtype;
  layout.max_rank = ceil_div(max_rank, kRankTile) * kRankTile;
  int32_t num_parts = 0;
  for (const LinearSite& site : sites) {
    num_parts += static_cast<int32_t>(site.parts.size());
  }
  const auto take = [&](size_t bytes) {
    const int64_t at = layout.bytes;
    layout.bytes += ceil_div(static_cast<int64_t>(bytes), kAlignment) * kAlignment;
    return at;
  };
  take(static_cast<size_t>(num_parts) * sizeof(int32_t));
  int32_t first_rank = 0;
  for (const LinearSite& site : sites) {
    if (dtype != DType::kF32 && !fits_tiles(site)) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("--enable-lora: {} has sizes that are no multiples of 8",
                              site.parts.front().module));
    }
    LowRankProduct& product = layout.products.emplace_back();
    product.k = static_cast<int32_t>(site.k);
    product.first_rank = first_rank;
    for (const LinearSitePart& part : site.parts) {
      LowRankPart& to = product.parts[product.num_parts++];
      to.n = static_cast<int32_t>(part.rows);
      to.y_col = static_cast<int32_t>(part.y_col);
      to.a = take(low_rank_a_bytes(dtype, layout.max_rank, product.k));
      to.b = take(low_rank_b_bytes(dtype, layout.max_rank, to.n));
    }
    first_rank += product.num_parts;
    layout.most_parts = std::max(layout.most_parts, product.num_parts);
    layout.most_chunks = std::max(layout.most_chunks, low_rank_cut(dtype, product.k).num_chunks);
  }
  return layout;
}

}  // namespace warprow
