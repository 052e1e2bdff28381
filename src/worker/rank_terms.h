// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>

namespace warprow {

// What must be equal on all ranks of an engine, though each has its own device: the scheduler plans for them as for
// one. A rank offers what its device allows after it has built all but its cache. Then every rank builds its cache
// with the agreed terms.
struct RankTerms {
  static constexpr int32_t kNoLimit = std::numeric_limits<int32_t>::max();

  int32_t num_blocks = 0;            // of the KV cache, the null block included
  int32_t max_model_len = kNoLimit;  // with that cache
  int32_t num_token_pages = kNoLimit;
  bool operator==(const RankTerms&) const = default;
};

// The minimum of all offers; there is at least one.
inline RankTerms agree(std::span<const RankTerms> offers) {
  RankTerms agreed = offers.front();
  for (const RankTerms& offer : offers) {
    agreed.num_blocks = std::min(agreed.num_blocks, offer.num_blocks);
    agreed.max_model_len = std::min(agreed.max_model_len, offer.max_model_len);
    agreed.num_token_pages = std::min(agreed.num_token_pages, offer.num_token_pages);
  }
  return agreed;
}

// The terms as ranks exchange them; they run the same program.
inline std::string encode(const RankTerms& terms) {
  return {reinterpret_cast<const char*>(&terms), sizeof terms};
}
inline RankTerms decode_terms(const std::string& text) {
  RankTerms terms;
  WR_CHECK_EQ(text.size(), sizeof terms);
  std::memcpy(&terms, text.data(), sizeof terms);
  return terms;
}

}  // namespace warprow
