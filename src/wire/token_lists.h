// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace warprow {

// The token lists of a request; an empty list is off.
struct TokenLists {
  std::vector<TokenId> allowed;                   // only these may be sampled
  std::vector<std::vector<TokenId>> bad_words;    // sequences that the output never completes
  std::vector<std::pair<TokenId, float>> biases;  // added to logits; ids ascend, none twice
  std::vector<TokenId> logprob_ids;               // ids whose logprobs are requested; no rule

  [[nodiscard]] bool has_rules() const {
    return !allowed.empty() || !bad_words.empty() || !biases.empty();
  }
  [[nodiscard]] bool empty() const { return !has_rules() && logprob_ids.empty(); }
};

// A row's memory for its lists is fixed: four counts and this many words. An allowed id takes one, a bias two, a
// bad word one and one for each of its ids, an id for logprobs one. vLLM's limits (1,024 ids, 1,024 biases, 1,024
// ids in 128 words, 128 ids) fit together.
inline constexpr int32_t kTokenListsHeader = 4;
inline constexpr int32_t kMaxTokenListWords = 4352;
// The most ids whose logprobs a request may ask for.
inline constexpr int32_t kMaxLogprobIds = 128;
inline constexpr int32_t kTokenListsWidth = kTokenListsHeader + kMaxTokenListWords;

[[nodiscard]] int64_t num_token_list_words(const TokenLists& lists);
// The content of that memory: the counts of allowed ids, of biases, of words of bad words and of ids for logprobs,
// then these four lists. A bias is an id and the bits of its float, a bad word its length and its ids.
[[nodiscard]] std::vector<int32_t> pack_token_lists(const TokenLists& lists);

}  // namespace warprow
