// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"

#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

// The requests of `verify`: random prompts, half of the requests greedy and half seeded, some with penalties, some with
// logprobs, some with a common prefix. The same for the same seed, on every machine.
struct VerifyLoad {
  int64_t num_requests = 24;
  int64_t max_input_len = 512;  // prompts have 1 to so many tokens, short ones more often
  int64_t output_len = 48;
  int64_t seed = 1;
};
std::vector<GenerationRequest> draw_requests(const VerifyLoad& load, int32_t vocab_size);

// What a client gets for one request.
struct VerifyAnswer {
  std::vector<TokenId> tokens;
  std::vector<LogprobEntry> logprobs;  // parallel to tokens if the request asks for them
  FinishReason reason = FinishReason::kNone;
  std::string error;  // with kError
};

// The first difference in words, "token 17 is 1234 instead of 99"; empty if the answers are equal to the last bit.
std::string difference(const VerifyAnswer& expected, const VerifyAnswer& got);

}  // namespace warprow
