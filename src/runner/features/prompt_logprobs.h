// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Logprobs of prompt tokens, for the requests that ask for them. After sampling, when the logits buffer is free
// again, the head runs over the prompt tokens of the step, as many at a time as fit. The device writes the results
// to a pinned ring. The host collects the pieces of a request and returns them with its first token. Uses host
// memory only, and allocates there as pieces arrive.
std::unique_ptr<RunnerFeature> make_prompt_logprobs(const RunnerParts& parts);

}  // namespace warprow
