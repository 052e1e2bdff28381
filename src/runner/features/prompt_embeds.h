// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Prompts that come as embeddings instead of ids (NewRow::embeds), in chunks beside other rows like any
// prompt. Their tokens have the id -1 among the row's known ones, which tells the model to read the token's
// row of InputBuffers::embeddings. The vectors stay on the host until their row is taken back; a step's are
// staged in a pinned ring and copied in front of the forward.
std::unique_ptr<RunnerFeature> make_prompt_embeds(const RunnerParts& parts);

}  // namespace warprow
