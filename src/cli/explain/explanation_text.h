// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string>

#include <nlohmann/json.hpp>

namespace warprow {

// The answer of GET /v1/requests/{id} as text: for each choice why it took its time, and a line for each event. Ids come
// from clients, so visible_text is applied to them. Errors: the JSON is no such answer.
Result<std::string> explanation_text(const nlohmann::json& explanation);

}  // namespace warprow
