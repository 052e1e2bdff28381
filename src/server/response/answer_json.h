// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/response/answer_writer.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace warprow {

// Parts that the responses of all endpoints share.

// Invalid UTF-8 becomes U+FFFD.
std::string json_text(const nlohmann::ordered_json& json);

// One server-sent event.
std::string sse_event(std::string_view data);

nlohmann::ordered_json answer_head(const AnswerInfo& info, const char* object);
nlohmann::ordered_json finish_reason_json(const RequestUpdate& update);
nlohmann::ordered_json stop_reason_json(const RequestUpdate& update);

// Milliseconds, rounded to the microsecond to avoid long decimals.
double rounded_ms(double ms);
double per_second(int64_t count, double ms);

// OpenAI's usage of all choices; a prompt counts once.
nlohmann::ordered_json usage_json(std::span<const RequestUpdate> choices, const AnswerShape& shape);

// llama.cpp's timings, and the time in the queue. Counts are sums over the choices; times are those of the slowest
// choice.
nlohmann::ordered_json timings_json(std::span<const RequestUpdate> choices);

// Whether an update has anything that the client can see.
bool has_news(const RequestUpdate& update, const AnswerShape& shape);

}  // namespace warprow
