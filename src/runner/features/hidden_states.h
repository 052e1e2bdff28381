// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Hidden states after the final norm, for the requests that ask for them: of the token that each output is drawn
// from, or of all prompt tokens too. They are copied to a pinned ring in the model's element type. Those of the
// prompt are kept on the host and returned with the first output.
std::unique_ptr<RunnerFeature> make_hidden_states(const RunnerParts& parts);

}  // namespace warprow
