// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Verifies before each forward that every real token's slot lies in a block that the scheduler gave
// to the token's own row, and that no slot is written twice in the step. Follows the blocks on the
// host from the scheduler's messages alone, so that a wrong table on the device shows. Reads device
// memory, so it looks at CPU devices only.
std::unique_ptr<RunnerFeature> make_slot_check(const RunnerParts& parts);

}  // namespace warprow
