// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "engine/request.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace warprow {

// Vectors of float32, float16 or bfloat16, little endian and without gaps, as a prompt's. width is above 0; the bytes are
// whole vectors and need no alignment.
[[nodiscard]] PromptEmbeds prompt_embeds(std::span<const std::byte> bytes,
                                         DType dtype,
                                         int32_t width);

// The same from a safetensors file with one tensor, [tokens, hidden size]. The error follows the field's name.
[[nodiscard]] Result<PromptEmbeds> read_prompt_embeds(std::span<const std::byte> file);

}  // namespace warprow
