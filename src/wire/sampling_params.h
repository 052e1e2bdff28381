// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

namespace warprow {

// A row's sampling parameters as the device reads them: one struct of 128 bytes, staged once at admission, read
// through idx_mapping. engine/validate checks the ranges; here every value is legal.
struct alignas(16) SamplingParams {
  float temperature = 0.0F;   // < 1e-5: greedy; 1e-5 .. 0.01 acts as 0.01
  float top_p = 1.0F;         // (0, 1]; 1: off
  float min_p = 0.0F;         // [0, 1]; 0: off
  int32_t top_k = 0;          // 0: off
  uint64_t seed = 0;          // always set: the engine draws one for a request without a seed
  int32_t num_logprobs = -1;  // -1: none; 0: the sampled token's only; n: also the n most likely
  int32_t min_tokens = 0;     // outputs before EOS and stop ids may be sampled
  float repetition_penalty = 1.0F;  // 1: off
  float frequency_penalty = 0.0F;   // 0: off
  float presence_penalty = 0.0F;    // 0: off
  uint32_t flags = 0;               // the constants below
  // -1: none; 0: each prompt token's own logprob; n: also those of the n most likely
  int32_t num_prompt_logprobs = -1;
  int32_t reserved[19] = {};

  // In flags; both have lists as in wire/token_lists.h.
  static constexpr uint32_t kHasTokenLists = 1;  // allowed ids, bad words or biases
  static constexpr uint32_t kHasLogprobIds = 2;  // num_logprobs ids instead of the most likely ones

  [[nodiscard]] bool has_token_lists() const { return (flags & kHasTokenLists) != 0; }
  // Which final hidden states are requested.
  static constexpr uint32_t kOutputHidden = 16;  // of the tokens that outputs are drawn from
  static constexpr uint32_t kPromptHidden = 32;  // of all prompt tokens too

  // A row of a pooling request yields a vector in place of a token: the last hidden state, the first, or the mean; or
  // a vector for each token. At most one of these is set.
  static constexpr uint32_t kPoolLast = 64;
  static constexpr uint32_t kPoolFirst = 128;
  static constexpr uint32_t kPoolMean = 256;
  static constexpr uint32_t kPoolAll = 512;
  static constexpr uint32_t kPooling = kPoolLast | kPoolFirst | kPoolMean | kPoolAll;
  [[nodiscard]] bool is_pooled() const { return (flags & kPooling) != 0; }

  // Whether prompt tokens before the last have something to report: logprobs, hidden states, or a part of a vector.
  [[nodiscard]] bool reports_prompt() const {
    constexpr uint32_t kOfPrompt = kPromptHidden | kPoolFirst | kPoolMean | kPoolAll;
    return num_prompt_logprobs >= 0 || (flags & kOfPrompt) != 0;
  }
  [[nodiscard]] bool has_lists() const { return (flags & (kHasTokenLists | kHasLogprobIds)) != 0; }
  [[nodiscard]] bool is_greedy() const { return temperature < 1e-5F; }
  bool operator==(const SamplingParams&) const = default;
};
static_assert(sizeof(SamplingParams) == 128);
static_assert(std::is_trivially_copyable_v<SamplingParams>);

}  // namespace warprow
