// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Logprobs of prompt tokens, for the requests that want them: behind sampling, when the logits have
// room again, the head runs over the prompt tokens of the step, as many at a time as fit. The device
// writes what it finds into a pinned ring; a request's pieces are put together on the host and leave
// with its first token. Costs memory of the host alone, and allocates there as pieces come.
std::unique_ptr<RunnerFeature> make_prompt_logprobs(const RunnerParts& parts);

}  // namespace warprow
