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

// The body of POST /v1/completions; see read_generation_fields. The vectors of an entry of prompt_embeds take the places
// of the ids -1 in the prompt that has them; without such places each entry is a prompt of its own, and those come first.
Result<GenerationBody> parse_completions_body(std::string_view text);
// The same after parsing. embeds: in place of the body's prompt_embeds, which must then be absent.
Result<GenerationBody> read_completions_body(const OrderedJson& root,
                                             std::string_view text,
                                             std::vector<PromptEmbeds> embeds);

}  // namespace warprow
