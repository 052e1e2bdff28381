// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/pooler.h"

#include <string>

namespace warprow {

// Reads what sentence-transformers writes beside a model: modules.json, the pooling's config.json, and the dense layers.
// Sets the pooler's method, layers, width, normalisation and judge; its width is the model's before. Returns whether the
// directory has a module that pools or scores.
// Errors: a file that is missing or no JSON of its form; a kind of module or of pooling that is not supported, by name.
Result<bool> read_sentence_modules(const std::string& dir, Pooler& pooler);

}  // namespace warprow
