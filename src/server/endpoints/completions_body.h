// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "server/endpoints/generation_body.h"

#include <cstddef>
#include <string_view>

namespace warprow {

// Limit of prompts in one request, as in vLLM.
inline constexpr size_t kMaxPrompts = 1024;

// The body of POST /v1/completions; see read_generation_fields.
Result<GenerationBody> parse_completions_body(std::string_view text);

}  // namespace warprow
