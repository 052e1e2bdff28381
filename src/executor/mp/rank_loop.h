// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/executor.h"
#include "executor/mp/rank_memory.h"
#include "executor/mp/rank_messages.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <vector>

namespace warprow {

// A rank's ends of what it shares with the executor.
struct RankLinks {
  const AbortFlag& abort;
  RankState& state;
  RingReader& commands;
  RingWriter& answers;
  bool tells_forward_done = false;  // by a message too
  bool sends_digests = false;       // of each step's results
};

// What a rank process does after start-up: takes the messages of the parent's executor, passes them to its own executor,
// which has this rank alone, and takes each step's output as soon as the device has it. The output rank sends the outputs
// on; the other ranks drop theirs.
//
// Owns: nothing.
// Thread: the rank's main thread, which submits.
class RankLoop {
 public:
  RankLoop(const RankLinks& links, int32_t rank, bool sends_outputs, Executor& executor);

  // Runs until told to stop; false if the engine was aborted.
  bool run();

 private:
  // Waits for the next message and takes outputs meanwhile; false: aborted.
  bool next_message();
  void retire();
  void call(const RankCall& call);
  void enter(RankPhase phase) { state_.phase.store(phase, std::memory_order_relaxed); }

  const AbortFlag& abort_;
  RankState& state_;
  RingReader& commands_;
  RingWriter& answers_;
  bool tells_forward_done_;
  bool sends_digests_;
  int32_t rank_;
  bool sends_outputs_;
  Executor& executor_;
  bool forward_pending_ = false;  // between the two phases of a step, its forward was not seen done

  // Reused by every step.
  RingMessage message_;
  SchedulerOutput step_;
  GrammarOutput grammar_;
  ModelRunnerOutput output_;
  std::vector<uint8_t> bytes_;
};

}  // namespace warprow
