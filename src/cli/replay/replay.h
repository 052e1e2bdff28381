// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/answer.h"
#include "cli/replay/step_file.h"
#include "executor/executor.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace warprow {

// Where a recording and its replay differ, or where the recorded schedule contradicts itself.
struct ReplayFinding {
  int64_t step = 0;
  std::optional<int32_t> row;  // none: the step as a whole
  std::string what;            // "token 0 is 1234 instead of 99"
};

struct ReplayReport {
  int64_t num_steps = 0;   // in the file
  int64_t first_step = 0;  // their numbers
  int64_t last_step = 0;
  int64_t num_gaps = 0;     // places where messages are missing
  int64_t num_damaged = 0;  // records with a wrong checksum
  std::optional<ReplayFinding> wrong_schedule;

  bool did_run = false;  // false: only the schedule was checked
  int64_t num_steps_run = 0;
  int64_t num_outputs = 0;     // of rows, compared
  int64_t num_requests = 0;    // rows that ran, from their beginning
  int64_t num_left_out = 0;    // rows that could not run
  int64_t num_recomputed = 0;  // tokens of prefixes that were cached before the recording
  int64_t num_different = 0;   // requests; after its first difference a request is not compared
  std::optional<ReplayFinding> first_difference;

  [[nodiscard]] bool is_same() const { return !wrong_schedule && !first_difference; }
};

// Called after each message with what was found so far.
using ReplayProgress = std::function<void(const ReplayReport& so_far)>;

// Checks the schedule of a recording, and, with an executor, runs its steps one by one and compares what each row
// yields. The executor is fresh and has the sizes of `facts`. Ends at the first contradiction in the schedule. Errors:
// a message that this build cannot read.
Result<ReplayReport> replay(const StepFile& file,
                            const ModelFacts& facts,
                            Executor* executor,
                            const ReplayProgress& progress = {});

}  // namespace warprow
