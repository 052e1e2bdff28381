// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

struct Pooler;

// Vectors in place of tokens, for the rows of pooling requests (SamplingParams::kPooling). A row yields them with the
// step that ends its prompt, and no logits. The hidden states that a vector needs are copied to a pinned ring in the
// model's element type: one of each row, or those of all tokens. If one step computes a whole prompt, the device takes the
// mean. Otherwise the host sums over the prompt's chunks. Both add in float64 in the order of the tokens, so that neither
// chunks nor other rows change a bit of the mean. The pooler's layers then run on the host.
// The pooler must outlive the feature.
std::unique_ptr<RunnerFeature> make_pooling(const RunnerParts& parts, const Pooler& pooler);

}  // namespace warprow
