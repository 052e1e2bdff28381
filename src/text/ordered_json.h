// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string_view>

#include <nlohmann/json.hpp>

namespace warprow {

// Parses a JSON object whose members keep their order. `what` names it in messages. kInvalidArgument if it is none, or
// nests deeper than kMaxJsonDepth: values are printed and freed recursively.
Result<nlohmann::ordered_json> parse_ordered_object(std::string_view text, std::string_view what);

}  // namespace warprow
