// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/request.h"

#include <string_view>

namespace warprow {

// Reads a line of --prompts-file: one JSON object with `prompt` (text or a list of token ids) or `messages` (a list of
// {"role","content"}). It may have any sampling field by its vLLM name, `structured_outputs` or `response_format`
// (text/structured_output.h), `priority` and `cache_salt`. null counts as absent. A whole number may be written 1.0.
// Omitted fields come from `defaults`. An error names the field. An unknown field is an error.
Result<GenerationRequest> parse_request_line(std::string_view line,
                                             const SamplingOptions& defaults);

}  // namespace warprow
