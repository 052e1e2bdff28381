// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/replay/step_file_writer.h"
#include "executor/executor.h"

#include <cstddef>
#include <memory>

namespace warprow {

struct StepRecorderOptions {
  // With token ids, logprobs and masks; else with their hashes. Hidden states and pooled vectors are never recorded.
  bool with_ids = false;
  size_t queue_length = 1024;  // messages; a step has two or three
};

// An executor that passes every call to `inner` and records the messages of all steps. The caller's thread copies a
// message into a queue, and a thread of the recorder's own writes it. A message that finds the queue full, or that
// cannot be written, is lost and leaves a gap in the numbers of the records; nothing waits for the file.
std::unique_ptr<Executor> make_step_recorder(std::unique_ptr<Executor> inner,
                                             StepFileWriter file,
                                             const StepRecorderOptions& options);

}  // namespace warprow
