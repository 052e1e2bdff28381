// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/token_history.h"
#include "kernels/sample/token_lists.h"

#include <cstdint>
#include <limits>

namespace warprow {

// Whether the outputs end with the first len - 1 ids of a word of len tokens, so that the word's last token
// would complete it. The prompt is not part of the match.
WR_HD inline bool would_complete(const KnownTokens& tokens, const int32_t* word, int32_t len) {
  if (len - 1 > tokens.num_outputs()) {
    return false;
  }
  for (int32_t i = 0; i < len - 1; ++i) {
    if (tokens.at(tokens.len - (len - 1) + i) != word[i]) {
      return false;
    }
  }
  return true;
}

namespace cpu {

// Sets the logit of every token that would complete a bad word to -inf.
inline void mask_bad_words(const TokenListsView& lists,
                           const KnownTokens& tokens,
                           float* logits,
                           int32_t vocab) {
  for (int32_t at = 0; at < lists.bad_words_len;) {
    const int32_t len = lists.bad_words[at];
    const int32_t* word = lists.bad_words + at + 1;
    const int32_t last = word[len - 1];
    if (last >= 0 && last < vocab && would_complete(tokens, word, len)) {
      logits[last] = -std::numeric_limits<float>::infinity();
    }
    at += 1 + len;
  }
}

}  // namespace cpu
}  // namespace warprow
