// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Prompts with embeddings in place of some ids or all (NewRow::embeds). They are prefilled in chunks beside other rows,
// like any prompt. Such tokens have the id -1 in the row's known tokens; for such an id the model reads the
// token's row of InputBuffers::embeddings. The vectors stay on the host until their row is released. Those of a
// step are staged in a pinned ring and copied before the forward.
std::unique_ptr<RunnerFeature> make_prompt_embeds(const RunnerParts& parts);

}  // namespace warprow
