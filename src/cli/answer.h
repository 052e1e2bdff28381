// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"
#include "engine/engine.h"

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// A request's updates put together.
struct Answer {
  std::string text;
  std::vector<TokenId> token_ids;
  std::vector<LogprobEntry> logprobs;
  RequestUpdate
      last;  // the final update, without the parts above; finish_reason kNone before it came

  void add(RequestUpdate update);
  [[nodiscard]] bool finished() const { return last.finish_reason != FinishReason::kNone; }
};

using AnswerJson = nlohmann::ordered_json;

// {"prompt_token_ids":[…],"choices":[{…}],"usage":{…},"timings":{…}}. A log probability of minus
// infinity is written -9999.0, as vLLM does, since JSON has no infinity.
AnswerJson answer_json(std::span<const TokenId> prompt_token_ids, const Answer& answer);

// {"error":{"message":…,"type":…,"param":null,"code":…}}, the form and the numbers of the OpenAI
// API.
AnswerJson error_json(const Error& error);

// The counters under their names in EngineStats.
AnswerJson stats_json(const EngineStats& stats);

// One line, with its line end; text that is not UTF-8 gets U+FFFD.
std::string json_line(const AnswerJson& json);

}  // namespace warprow
