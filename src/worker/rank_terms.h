// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace warprow {

// What must be equal on all ranks of an engine, though each has its own device: the scheduler plans for them as for
// one. A rank offers what its device allows after it has built all but its cache. Then every rank builds its cache
// with the agreed terms.
struct RankTerms {
  int32_t num_blocks = 0;  // of the KV cache, the null block included
  bool operator==(const RankTerms&) const = default;
};

// The minimum of all offers; there is at least one. Ranks of one process call it with each other's offers; a single
// rank with its own.
inline RankTerms agree(std::span<const RankTerms> offers) {
  RankTerms agreed = offers.front();
  for (const RankTerms& offer : offers) {
    agreed.num_blocks = std::min(agreed.num_blocks, offer.num_blocks);
  }
  return agreed;
}

}  // namespace warprow
