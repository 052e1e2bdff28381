// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/wake_up.h"
#include "executor/executor.h"
#include "executor/mp/rank_memory.h"
#include "executor/mp/rank_messages.h"
#include "executor/mp/step_digest.h"
#include "wire/model_runner_output.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace warprow {

// Reads what the ranks answer, on a thread of its own: how their start went, outputs of steps, replies to operations.
// Once the executor has failed, every wait ends with that error.
//
// Owns: the thread; outputs and replies that were not taken.
// Thread: the engine's, but fail from any.
class AnswerReader {
 public:
  AnswerReader(RankMemory& memory, int32_t output_rank);

  // Waits until every rank is ready. Returns the output rank's message. Throws the StartupError of the first rank that
  // cannot start.
  RankReady wait_until_ready();

  // The future replies to operation `id`, from one rank or, with -1, from all. Call it before the ranks get it.
  RankReplies expect_replies(uint64_t id, int32_t rank);

  [[nodiscard]] bool output_ready() const;
  // Blocks until the next output is there. Throws std::runtime_error after a failure.
  void take_output(ModelRunnerOutput& output);
  // The output rank's, as of the last output read.
  [[nodiscard]] ExecutorStats stats() const;
  // Notified of outputs and of a failure.
  void set_wake_up(WakeUp* wake_up);

  // Ends every wait with this error.
  void fail(const std::string& why);
  // Throws std::runtime_error after a failure.
  void throw_if_failed() const;
  // After an abort: throws std::runtime_error with the failure, as soon as it is known.
  [[noreturn]] void throw_failure() const;

 private:
  struct Call {
    std::promise<std::vector<std::string>> promise;
    std::vector<std::string> texts;  // by rank, or the one's alone
    int32_t num_missing = 0;
    int32_t first_rank = 0;
    std::exception_ptr error;
  };

  void read(const std::stop_token& stop);
  void handle(int32_t rank, const RingMessage& message);
  void add_output(const RingMessage& message);
  void add_reply(int32_t rank, RankReply reply);
  void compare(int32_t rank, const RingMessage& message);
  void notify();
  [[nodiscard]] bool is_waiting_for_all() const;

  // Of a rank, waiting for those of the others in its stage.
  struct Digest {
    StepDigest digest;
    int32_t rank = 0;
    int32_t num_ranks = 1;  // that agree
  };

  ControlBlock& control_;
  int32_t num_ranks_;
  int32_t stage_size_;
  int32_t output_rank_;
  std::vector<RingReader> readers_;  // by rank

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int32_t num_ready_ = 0;
  RankReady ready_;
  std::optional<StartupError> start_error_;
  std::deque<std::vector<uint8_t>> outputs_;  // oldest first
  std::vector<std::vector<uint8_t>> free_;    // buffers of outputs that were taken
  std::map<uint64_t, Call> calls_;
  std::deque<Digest> digests_;  // by step
  ExecutorStats stats_;
  std::string failure_;
  WakeUp* wake_up_ = nullptr;
  std::jthread thread_;
};

}  // namespace warprow
