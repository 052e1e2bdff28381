// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/request.h"

#include <string_view>

namespace warprow {

// Reads a line of --prompts-file: one JSON object with `prompt` (text or a list of token ids) or
// `messages` (a list of
// {"role","content"}), and any sampling field by its vLLM name, `structured_outputs` or
// `response_format` (text/structured_output.h), `priority` or `cache_salt`. null
// counts as absent; a whole number may be written 1.0. What the line leaves out comes from
// `defaults`. An error names the field; an unknown field is one.
Result<GenerationRequest> parse_request_line(std::string_view line,
                                             const SamplingOptions& defaults);

}  // namespace warprow
