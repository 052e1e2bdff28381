// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/sample/sample_params.h"

#include <cstdint>

namespace warprow {

// Bit of SampleParams::flags: the row has token lists.
inline constexpr uint32_t kFlagTokenLists = 1;

WR_HD constexpr bool has_token_lists(const SampleParams& p) {
  return (p.flags & kFlagTokenLists) != 0;
}

// The lists of tokens that a request brings, as they lie in its row of SampleArgs::token_lists:
// three counts, then the lists without gaps. The layout is that of wire/token_lists.h, which this
// room may not include. Ids outside the vocabulary are skipped.
struct TokenListsView {
  const int32_t* allowed = nullptr;  // i32 [num_allowed]  ids; none: all are allowed
  int32_t num_allowed = 0;
  const int32_t* biases = nullptr;  // i32 [num_biases, 2]  an id and the bits of a float
  int32_t num_biases = 0;
  const int32_t* bad_words =
      nullptr;  // i32 [bad_words_len]  of each word its length >= 1, then ids
  int32_t bad_words_len = 0;
};

WR_HD inline TokenListsView token_lists_at(const int32_t* words) {
  TokenListsView lists;
  lists.num_allowed = words[0];
  lists.num_biases = words[1];
  lists.bad_words_len = words[2];
  lists.allowed = words + 3;
  lists.biases = lists.allowed + lists.num_allowed;
  lists.bad_words = lists.biases + 2 * static_cast<int64_t>(lists.num_biases);
  return lists;
}

}  // namespace warprow
