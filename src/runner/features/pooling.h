// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

struct Pooler;

// Vectors in place of tokens, for the rows of pooling requests (SamplingParams::kPooling). A row yields them with the
// step that ends its prompt, and no logits. The hidden states that a vector needs are copied to a pinned ring in the
// model's element type: one of each row, or those of all tokens. A mean of a prompt that came whole is
// computed where the model runs; else it is kept as a sum over the prompt's chunks. Both add float64 in the order of the
// tokens, so that neither chunks nor other rows change a bit of it. The pooler's layers follow on the host.
// The pooler must outlive the feature.
std::unique_ptr<RunnerFeature> make_pooling(const RunnerParts& parts, const Pooler& pooler);

}  // namespace warprow
