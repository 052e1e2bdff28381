// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"
#include "engine/engine.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// The joined updates of a request. finish_reason is kNone until the final update.
struct Answer : RequestUpdate {
  void add(RequestUpdate update) { join_update(*this, std::move(update)); }
  [[nodiscard]] bool finished() const { return finish_reason != FinishReason::kNone; }
};

// The first choice that failed, or null.
const Answer* find_failed(std::span<const Answer> answers);

// Of all choices together.
int64_t count_output_tokens(std::span<const Answer> answers);

using AnswerJson = nlohmann::ordered_json;

// {"prompt_token_ids":[…],"choices":[{…}],"usage":{…},"timings":{…}}. If requested, "prompt_logprobs" precede the
// choices, with null for the first token, and a choice has its "hidden_states". A log probability of minus infinity is
// written -9999.0, as in vLLM, because JSON has no infinity.
// There is one choice for each answer, at least one. usage counts the prompt once. The prompt's timings are those of
// the first choice, and predicted_ms is that of the slowest.
AnswerJson answer_json(std::span<const TokenId> prompt_token_ids, std::span<const Answer> answers);

// {"error":{"message":…,"type":…,"param":null,"code":…}}, with the format and codes of the OpenAI API.
AnswerJson error_json(const Error& error);

// The counters under their names in EngineStats.
AnswerJson stats_json(const EngineStats& stats);

// One line with its line end. Invalid UTF-8 becomes U+FFFD.
std::string json_line(const AnswerJson& json);

}  // namespace warprow
