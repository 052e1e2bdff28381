// SPDX-License-Identifier: Apache-2.0
#include "models/bank_layout.h"

#include "base/math.h"
#include "kernels/low_rank/low_rank_pack.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr int64_t kAlignment = 256;

// Tiles on a GPU have vectors of eight elements.
constexpr int64_t kTileUnit = 8;

Result<void> check_tiles(const LinearSite& site) {
  const auto refuse = [](const std::string& module, int64_t size, const char* what) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--enable-lora: {} has {} {} on a rank, which is no multiple of {}",
                            module,
                            size,
                            what,
                            kTileUnit));
  };
  if (site.k % kTileUnit != 0) {
    return refuse(site.parts.front().module, site.k, "inputs");
  }
  for (const LinearSitePart& part : site.parts) {
    if (part.rows % kTileUnit != 0) {
      return refuse(part.module, part.rows, "outputs");
    }
  }
  return {};
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
    if (auto fits = dtype == DType::kF32 ? Result<void>() : check_tiles(site); !fits) {
      return tl::unexpected(fits.error());
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
