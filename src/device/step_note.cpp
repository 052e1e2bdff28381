// SPDX-License-Identifier: Apache-2.0
#include "device/step_note.h"

#include <fmt/format.h>

namespace warprow {
namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): a thread's own note
thread_local StepNote current;

}  // namespace

void set_step_note(const StepNote& note) { current = note; }

std::string describe_step_note() {
  return current.step < 0 ? std::string()
                          : fmt::format(" in step {} ({} rows, {} tokens)",
                                        current.step,
                                        current.num_rows,
                                        current.num_toks);
}

}  // namespace warprow
