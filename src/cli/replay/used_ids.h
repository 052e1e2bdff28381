// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/replay/step_file.h"

#include <cstdint>

namespace warprow {

// What the steps of a recording name: a pool with so many blocks and pages can run them, however large the recorded
// pool was. Ids beyond the recorded pool count too; ScheduleCheck finds them.
struct UsedIds {
  int64_t num_blocks = 0;       // the largest KV block id and one
  int64_t num_token_pages = 0;  // the largest token page id and one
};

// Errors: kCorrupt, kInvalidArgument: a message that cannot be read.
[[nodiscard]] Result<UsedIds> used_ids(const StepFile& file);

}  // namespace warprow
