// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Verifies in each step that every real token's slot lies in a block that the scheduler gave to the token's own
// row, and that no slot is written twice in the step. It tracks blocks on the host from the scheduler's messages
// alone, so that it detects a wrong table on the device. The slots are copied back with the step and checked when
// its output is taken, on every device. For tests.
std::unique_ptr<RunnerFeature> make_slot_check(const RunnerParts& parts);

}  // namespace warprow
