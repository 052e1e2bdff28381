// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Hidden states behind the final norm, for the requests that want them: of the token that each
// output is drawn from, or of all prompt tokens too. They are copied to a pinned ring as the model
// has them; those of the prompt are kept on the host and leave with the first output.
std::unique_ptr<RunnerFeature> make_hidden_states(const RunnerParts& parts);

}  // namespace warprow
