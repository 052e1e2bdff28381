// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace warprow {

// The step that this thread is submitting, so that a device error can name it. Plain numbers, since a device does
// not depend on batches.
struct StepNote {
  int64_t step = -1;  // -1: none
  int32_t num_rows = 0;
  int32_t num_toks = 0;
};
void set_step_note(const StepNote& note);
// " in step 12 (3 rows, 40 tokens)", or nothing.
std::string describe_step_note();

}  // namespace warprow
