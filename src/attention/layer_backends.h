// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// Reads which attention backend each layer wishes: one name for all ("auto", "native"), or a list
// like "native:0-3,flashinfer": NAME:FIRST-LAST or NAME:LAYER takes these layers, a last NAME those
// that are left; layers that nothing names are "auto". Whether a backend exists and fits is
// make_attention_backend's to say. Errors: an empty name, a range that is none or outside the model,
// a layer named twice, a name for the rest that is not the last.
Result<std::vector<std::string>> layer_backends(std::string_view text, int32_t num_layers);

}  // namespace warprow
