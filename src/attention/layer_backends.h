// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// Parses which attention backend each layer uses: one name for all ("auto", "native"), or a list like
// "native:0-3,flashinfer". NAME:FIRST-LAST or NAME:LAYER sets these layers, and a last NAME the remaining ones;
// unnamed layers are "auto". make_attention_backend checks that a backend exists and fits. Errors: an empty name,
// an invalid range or one outside the model, a layer named twice, a name for the rest that is not the last.
Result<std::vector<std::string>> layer_backends(std::string_view text, int32_t num_layers);

}  // namespace warprow
