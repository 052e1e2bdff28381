// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace warprow {

// The lists of tokens that a request brings for sampling; each may be empty, which is off.
struct TokenLists {
  std::vector<TokenId> allowed;                   // only these may be sampled
  std::vector<std::vector<TokenId>> bad_words;    // sequences that the output never completes
  std::vector<std::pair<TokenId, float>> biases;  // added to logits; an id at most once

  [[nodiscard]] bool empty() const {
    return allowed.empty() && bad_words.empty() && biases.empty();
  }
};

// A row's place for its lists is fixed: three counts and this many words. An allowed id takes one,
// a bias two, a bad word one and one for each of its ids. vLLM's limits (1,024 ids, 1,024 biases,
// 1,024 ids in 128 words) fit together.
inline constexpr int32_t kTokenListsHeader = 3;
inline constexpr int32_t kMaxTokenListWords = 4349;
inline constexpr int32_t kTokenListsWidth = kTokenListsHeader + kMaxTokenListWords;

[[nodiscard]] int64_t num_token_list_words(const TokenLists& lists);
// The content of the row's place: the counts of allowed ids, of biases and of words of bad words,
// then these three lists; a bias is an id and the bits of its float, a bad word its length and its
// ids.
[[nodiscard]] std::vector<int32_t> pack_token_lists(const TokenLists& lists);

}  // namespace warprow
