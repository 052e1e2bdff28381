// SPDX-License-Identifier: Apache-2.0
#include "engine/prompt_length.h"

#include <algorithm>

#include <fmt/format.h>

namespace warprow {

int64_t PromptLength::left(int64_t num_toks) const {
  return std::max<int64_t>(limit_ - num_toks, 0);
}

std::optional<PromptExcess> PromptLength::judge(int64_t num_toks) const {
  if (num_toks < limit_) {
    return std::nullopt;
  }
  return PromptExcess{
      fmt::format("prompt: {} tokens and at least one more for the answer exceed the "
                  "maximum context length of {} tokens (max_model_len)",
                  num_toks,
                  limit_),
      num_toks,
      limit_};
}

// Clients recognise this error and the next by the words "this model's maximum context length is".
std::optional<PromptExcess> PromptLength::judge(int64_t num_toks,
                                                std::optional<int64_t> max_tokens) const {
  const int64_t wanted = std::max<int64_t>(max_tokens.value_or(1), 1);
  if (num_toks + std::min(wanted, limit_) <= limit_) {
    return std::nullopt;
  }
  return PromptExcess{fmt::format("prompt: {} tokens and max_tokens {} are too many: this model's "
                                  "maximum context length is {} tokens (max_model_len)",
                                  num_toks,
                                  wanted,
                                  limit_),
                      num_toks,
                      limit_};
}

std::optional<PromptExcess> PromptLength::judge_alone(int64_t num_toks) const {
  if (num_toks <= limit_) {
    return std::nullopt;
  }
  return PromptExcess{fmt::format("prompt: {} tokens are too many: this model's maximum context "
                                  "length is {} tokens (max_model_len)",
                                  num_toks,
                                  limit_),
                      num_toks,
                      limit_};
}

std::optional<PromptExcess> PromptLength::judge_text(size_t num_bytes,
                                                     int64_t num_toks,
                                                     const char* field) const {
  if (num_toks <= limit_) {
    return std::nullopt;
  }
  return PromptExcess{
      fmt::format("{}: {} bytes have {} tokens or more, which are too many: this model's maximum "
                  "context length is {} tokens (max_model_len)",
                  field,
                  num_bytes,
                  num_toks,
                  limit_),
      num_toks,
      limit_};
}

Result<int64_t> PromptLength::truncated(int64_t wanted, std::optional<int64_t> max_tokens) const {
  const int64_t answer = std::max<int64_t>(max_tokens.value_or(1), 1);
  return truncated_alone(wanted).map(
      [&](int64_t most) { return wanted < 0 ? std::max<int64_t>(limit_ - answer, 1) : most; });
}

Result<int64_t> PromptLength::truncated_alone(int64_t wanted) const {
  if (wanted > limit_) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("truncate_prompt_tokens: {} is above the maximum context length of {} "
                            "tokens (max_model_len)",
                            wanted,
                            limit_));
  }
  return wanted < 0 ? limit_ : wanted;
}

}  // namespace warprow
