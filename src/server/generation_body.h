// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/request.h"

#include <string>
#include <string_view>
#include <vector>

namespace warprow {

enum class Endpoint { kCompletions, kChat };

// The body of POST /v1/completions or /v1/chat/completions.
struct GenerationBody {
  GenerationRequest request;
  std::string model;  // empty: not named
  bool stream = false;
  bool include_usage = false;        // only with stream
  std::vector<std::string> ignored;  // fields that are not known; nothing else is ignored
};

// Reads types and shapes; ranges are engine/validate's matter. Fields and defaults are vLLM's, null
// counts as absent, a whole number may be written 1.0. kInvalidArgument names the field, the value
// and what it must be; kUnsupported names a known field that would change the answer and is not
// there yet.
Result<GenerationBody> parse_generation_body(Endpoint endpoint, std::string_view body);

}  // namespace warprow
