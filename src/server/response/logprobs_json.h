// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/response/answer_writer.h"

#include <cstdint>
#include <optional>
#include <span>

#include <nlohmann/json.hpp>

namespace warprow {

// The shortest decimal that identifies this float, instead of the sixteen digits of its double. JSON has no infinity;
// as in vLLM, it becomes -9999.
double shown_float(float value);

// /v1/completions: {"text_offset", "token_logprobs", "tokens", "top_logprobs"}, parallel lists.
// text_offset counts the characters of the tokens' own texts and continues from one call to the next. The first token
// of an echo has no logprob and gets null.
nlohmann::ordered_json completion_logprobs(std::span<const LogprobEntry> entries,
                                           const TokenBytes& token_bytes,
                                           int64_t& text_offset,
                                           std::optional<TokenId> echo_first = {});

// vLLM's prompt_logprobs: null for the first token, then {id: {"logprob", "rank", "decoded_token"}}.
nlohmann::ordered_json prompt_logprobs_json(std::span<const LogprobEntry> entries,
                                            const TokenBytes& token_bytes);

// /v1/chat/completions: {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}.
nlohmann::ordered_json chat_logprobs(std::span<const LogprobEntry> entries,
                                     const TokenBytes& token_bytes);

}  // namespace warprow
