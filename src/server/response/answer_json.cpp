// SPDX-License-Identifier: Apache-2.0
#include "server/response/answer_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <variant>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

double rounded_ms(double ms) { return std::round(ms * 1e3) / 1e3; }

double per_second(int64_t count, double ms) {
  return ms > 0 ? std::round(static_cast<double>(count) * 1e6 / ms) / 1e3 : 0.0;
}

std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string sse_event(std::string_view data) { return "data: " + std::string(data) + "\n\n"; }

Json answer_head(const AnswerInfo& info, const char* object) {
  Json out;
  out["id"] = info.id;
  out["object"] = object;
  out["created"] = info.created;
  out["model"] = info.model;
  return out;
}

Json finish_reason_json(const RequestUpdate& update) {
  return update.finish_reason == FinishReason::kNone
             ? Json(nullptr)
             : Json(finish_reason_name(update.finish_reason));
}

Json stop_reason_json(const RequestUpdate& update) {
  if (const auto* id = std::get_if<int64_t>(&update.stop_reason)) {
    return *id;
  }
  if (const auto* text = std::get_if<std::string>(&update.stop_reason)) {
    return *text;
  }
  return nullptr;
}

Json usage_json(std::span<const RequestUpdate> choices, const AnswerShape& shape) {
  int64_t num_output = 0;
  int64_t num_prompt = 0;
  int64_t num_cached = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    num_output += shape.only_prompt ? 0 : choices[i].num_output_tokens;
    if (i % shape.choices_per_prompt == 0) {
      num_prompt += choices[i].num_prompt_tokens;
      num_cached += choices[i].num_cached_tokens;
    }
  }
  Json out;
  out["prompt_tokens"] = num_prompt;
  out["completion_tokens"] = num_output;
  out["total_tokens"] = num_prompt + num_output;
  out["prompt_tokens_details"]["cached_tokens"] = num_cached;
  return out;
}

Json timings_json(std::span<const RequestUpdate> choices) {
  int64_t num_prompt = 0;
  int64_t num_cached = 0;
  int64_t num_output = 0;
  RequestTimings slowest;
  for (const RequestUpdate& choice : choices) {
    num_prompt += choice.num_prompt_tokens - choice.num_cached_tokens;
    num_cached += choice.num_cached_tokens;
    num_output += choice.num_output_tokens;
    slowest.queue_ms = std::max(slowest.queue_ms, choice.timings.queue_ms);
    slowest.prompt_ms = std::max(slowest.prompt_ms, choice.timings.prompt_ms);
    slowest.predicted_ms = std::max(slowest.predicted_ms, choice.timings.predicted_ms);
  }
  // The prefill produces the first token of a choice.
  const int64_t num_decoded = num_output - std::min<int64_t>(num_output, std::ssize(choices));
  Json out;
  out["queue_ms"] = rounded_ms(slowest.queue_ms);
  out["cache_n"] = num_cached;
  out["prompt_n"] = num_prompt;
  out["prompt_ms"] = rounded_ms(slowest.prompt_ms);
  out["prompt_per_second"] = per_second(num_prompt, slowest.prompt_ms);
  out["predicted_n"] = num_output;
  out["predicted_ms"] = rounded_ms(slowest.predicted_ms);
  out["predicted_per_second"] = per_second(num_decoded, slowest.predicted_ms);
  return out;
}

bool has_news(const RequestUpdate& update, const AnswerShape& shape) {
  return !update.text.empty() || !update.logprobs.empty() ||
         (shape.shows_token_ids() && !update.token_ids.empty()) ||
         update.finish_reason != FinishReason::kNone;
}

std::string AnswerWriter::error_events(const ApiError& error) {
  return sse_event(error_json(error)) + sse_event("[DONE]");
}

}  // namespace warprow
