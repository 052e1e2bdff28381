// SPDX-License-Identifier: Apache-2.0
#include "wire/token_lists.h"

#include "base/check.h"

#include <bit>

namespace warprow {
namespace {

int64_t num_bad_word_words(const TokenLists& lists) {
  int64_t words = 0;
  for (const std::vector<TokenId>& word : lists.bad_words) {
    words += 1 + static_cast<int64_t>(word.size());
  }
  return words;
}

}  // namespace

int64_t num_token_list_words(const TokenLists& lists) {
  return static_cast<int64_t>(lists.allowed.size() + 2 * lists.biases.size() +
                              lists.logprob_ids.size()) +
         num_bad_word_words(lists);
}

std::vector<int32_t> pack_token_lists(const TokenLists& lists) {
  WR_CHECK_LE(num_token_list_words(lists), kMaxTokenListWords);
  std::vector<int32_t> words = {static_cast<int32_t>(lists.allowed.size()),
                                static_cast<int32_t>(lists.biases.size()),
                                static_cast<int32_t>(num_bad_word_words(lists)),
                                static_cast<int32_t>(lists.logprob_ids.size())};
  words.insert(words.end(), lists.allowed.begin(), lists.allowed.end());
  for (const auto& [id, bias] : lists.biases) {
    words.push_back(id);
    words.push_back(std::bit_cast<int32_t>(bias));
  }
  for (const std::vector<TokenId>& word : lists.bad_words) {
    WR_CHECK(!word.empty(), "a bad word without tokens");
    words.push_back(static_cast<int32_t>(word.size()));
    words.insert(words.end(), word.begin(), word.end());
  }
  words.insert(words.end(), lists.logprob_ids.begin(), lists.logprob_ids.end());
  return words;
}

}  // namespace warprow
