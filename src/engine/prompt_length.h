// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace warprow {

// Why a prompt does not fit into a model's sequences.
struct PromptExcess {
  std::string message;   // one line that names the field, its length and the limit
  int64_t num_toks = 0;  // of the prompt; for a text that was not encoded whole, a lower bound
  int64_t limit = 0;     // max_model_len
};

// Judges whether a prompt and its answer fit into max_model_len: the one place that does. (Scheduler::check judges
// whether the KV cache can hold a request.)
//
// Thread: any.
class PromptLength {
 public:
  explicit PromptLength(int64_t max_model_len) : limit_(max_model_len) {}

  // How many tokens the answer to a prompt of num_toks can have; not negative.
  [[nodiscard]] int64_t left(int64_t num_toks) const;

  // Each returns nullopt if the prompt fits.
  // A prompt with at least one token of an answer.
  [[nodiscard]] std::optional<PromptExcess> judge(int64_t num_toks) const;
  // A prompt with an answer that must fit whole; max_tokens unset: at least one token.
  [[nodiscard]] std::optional<PromptExcess> judge(int64_t num_toks,
                                                  std::optional<int64_t> max_tokens) const;
  // A prompt without an answer in tokens.
  [[nodiscard]] std::optional<PromptExcess> judge_alone(int64_t num_toks) const;
  // A text of num_bytes that has num_toks tokens or more. field: for the message.
  [[nodiscard]] std::optional<PromptExcess> judge_text(size_t num_bytes,
                                                       int64_t num_toks,
                                                       const char* field) const;

  // The tokens that truncate_prompt_tokens keeps of a prompt: `wanted`, or for a negative one as many as leave room for
  // the answer. kInvalidArgument if `wanted` is above the limit.
  [[nodiscard]] Result<int64_t> truncated(int64_t wanted, std::optional<int64_t> max_tokens) const;
  // The same of a prompt without an answer in tokens.
  [[nodiscard]] Result<int64_t> truncated_alone(int64_t wanted) const;

 private:
  int64_t limit_;
};

}  // namespace warprow
