// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sched/request.h"
#include "wire/token_lists.h"

#include <cstdint>

namespace warprow::test {

// Every other token from `first` on, of which many are bad words, many pairs too, and some are
// biased.
inline TokenLists token_lists_from(TokenId first, int32_t vocab_size) {
  TokenLists lists;
  for (TokenId id = first; id < vocab_size && lists.allowed.size() < 1000; id += 2) {
    lists.allowed.push_back(id);
    if (id % 3 == 0) {
      lists.bad_words.push_back({id});
    } else if (lists.allowed.size() < 200) {
      lists.bad_words.push_back({id, id});
    }
    if (id % 5 == 0) {
      lists.biases.emplace_back(id, id % 10 == 0 ? 1.5F : -1.5F);
    }
  }
  return lists;
}

// All parameters at once, seeded.
inline void set_every_rule(Request& request, int32_t vocab_size) {
  SamplingParams& p = request.params;
  p.temperature = 0.9F;
  p.seed = 77 + request.id;
  p.top_k = 30;
  p.top_p = 0.95F;
  p.min_p = 0.02F;
  p.repetition_penalty = 1.2F;
  p.frequency_penalty = 0.3F;
  p.presence_penalty = -0.4F;
  p.min_tokens = request.max_tokens / 2;
  request.eos_token_ids = {2};
  request.stop_token_ids = {4, 10};
  TokenLists lists = token_lists_from(0, vocab_size);
  lists.logprob_ids = {7, 8, 100};
  request.token_lists = pack_token_lists(lists);
  p.flags = SamplingParams::kHasTokenLists | SamplingParams::kHasLogprobIds;
  p.num_logprobs = 3;
  p.num_prompt_logprobs = 2;
}

}  // namespace warprow::test
