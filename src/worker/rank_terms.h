// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace warprow {

// What all ranks of an engine must hold alike, though each sees its own device: the scheduler plans for
// them as for one. A rank offers what its device allows, between building all but its cache and
// building that; then every rank takes what was agreed.
struct RankTerms {
  int32_t num_blocks = 0;  // of the KV cache, the null block included
  bool operator==(const RankTerms&) const = default;
};

// The least of every offer; there is at least one. Ranks of one process call it with each other's; a
// rank alone with its own.
inline RankTerms agree(std::span<const RankTerms> offers) {
  RankTerms agreed = offers.front();
  for (const RankTerms& offer : offers) {
    agreed.num_blocks = std::min(agreed.num_blocks, offer.num_blocks);
  }
  return agreed;
}

}  // namespace warprow
