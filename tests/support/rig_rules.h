// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sched/request.h"
#include "wire/token_lists.h"

#include <cstdint>
#include <random>
#include <vector>

namespace warprow::test {

struct RequestMix {
  int32_t num_requests = 0;
  int32_t max_prompt = 0;  // above 40, the length of the common prefix
  int32_t max_tokens = 0;
  TokenId first_token = 0;  // smallest token id in prompts
  int32_t vocab_size = 0;
};

// Greedy requests with prompts of mixed length. Half of them share a prefix.
inline std::vector<Request> mixed_requests(const RequestMix& mix) {
  std::mt19937 random(7);
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  const auto token = [&] { return mix.first_token + below(mix.vocab_size - mix.first_token); };
  std::vector<TokenId> prefix(40);
  for (TokenId& id : prefix) {
    id = token();
  }
  std::vector<Request> requests(static_cast<size_t>(mix.num_requests));
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.id = i + 1;
    if (i % 2 == 0) {
      request.prompt = prefix;
    }
    for (int32_t more = 1 + below(mix.max_prompt - 40); more > 0; --more) {
      request.prompt.push_back(token());
    }
    request.max_tokens = 1 + below(mix.max_tokens);
  }
  return requests;
}

// Seeded random sampling for the i-th request, under one of three sets of parameters.
inline void set_drawing(SamplingParams& params, int32_t i) {
  params.temperature = 0.7F + 0.1F * static_cast<float>(i % 5);
  params.seed = 1000U + static_cast<uint64_t>(i);
  params.top_k = i % 3 == 0 ? 40 : 0;
  params.top_p = i % 3 == 1 ? 0.9F : 1.0F;
  params.min_p = i % 3 == 2 ? 0.05F : 0.0F;
}

// Allows every other token from `first` on. Many of these are bad words, alone or as pairs, and some are biased.
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

// Sets all sampling parameters at once, with a seed.
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
