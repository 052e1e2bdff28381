// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/sample/sample_params.h"

#include <cstdint>

namespace warprow {

// Bits of SampleParams::flags. Each says that the row has lists.
inline constexpr uint32_t kFlagTokenLists = 1;  // rules on tokens
inline constexpr uint32_t kFlagLogprobIds = 2;  // tokens whose logprobs are reported

WR_HD constexpr bool has_token_lists(const SampleParams& p) {
  return (p.flags & kFlagTokenLists) != 0;
}
WR_HD constexpr bool has_logprob_ids(const SampleParams& p) {
  return (p.flags & kFlagLogprobIds) != 0;
}

// The token lists of a request, as stored in its row of SampleArgs::token_lists: four counts, then the lists
// without gaps. The layout is that of wire/token_lists.h, which this room may not include. Ids outside the
// vocabulary are skipped.
struct TokenListsView {
  const int32_t* allowed = nullptr;  // i32 [num_allowed]  ids; none: all are allowed
  int32_t num_allowed = 0;
  // i32 [num_biases, 2]  an id and the bits of a float; ids ascend
  const int32_t* biases = nullptr;
  int32_t num_biases = 0;
  // i32 [bad_words_len]; for each word its length >= 1, then its ids.
  const int32_t* bad_words = nullptr;
  int32_t bad_words_len = 0;
  const int32_t* logprob_ids = nullptr;  // i32 [num_logprob_ids]
  int32_t num_logprob_ids = 0;
};

WR_HD inline TokenListsView token_lists_at(const int32_t* words) {
  TokenListsView lists;
  lists.num_allowed = words[0];
  lists.num_biases = words[1];
  lists.bad_words_len = words[2];
  lists.num_logprob_ids = words[3];
  lists.allowed = words + 4;
  lists.biases = lists.allowed + lists.num_allowed;
  lists.bad_words = lists.biases + 2 * static_cast<int64_t>(lists.num_biases);
  lists.logprob_ids = lists.bad_words + lists.bad_words_len;
  return lists;
}

}  // namespace warprow
