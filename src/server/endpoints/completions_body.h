// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "server/endpoints/generation_body.h"

#include <cstddef>
#include <string_view>
#include <vector>

namespace warprow {

// Limit of prompts in one request, as in vLLM.
inline constexpr size_t kMaxPrompts = 1024;

// A field with text, token ids, or a list of either kind, of at most `most` entries.
Result<std::vector<TextOrIds>> read_prompts(const char* field,
                                            const OrderedJson& value,
                                            size_t most = kMaxPrompts);

// The body of POST /v1/completions; see read_generation_fields.
Result<GenerationBody> parse_completions_body(std::string_view text);

}  // namespace warprow
