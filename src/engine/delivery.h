// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/observe.h"
#include "engine/output_batch.h"
#include "engine/output_queue.h"
#include "engine/request_log.h"
#include "sched/request.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace warprow {

// The way from the engine thread to the output thread: what steps yielded and how requests ended, collected until
// publish().
//
// Owns: the batch under way; when each row's request began.
// Thread: the engine's.
class Delivery {
 public:
  // requests: records the ends that no step yields.
  Delivery(OutputQueue& outputs, size_t max_num_seqs, RequestLog& requests);

  // The requests of a step's new rows run from now on.
  void begin_rows(const SchedulerOutput& step, EngineClock::time_point now);
  // The end of a request that no step yields. error: a literal.
  void end(RequestId id,
           FinishReason reason,
           const char* error = "",
           bool error_is_clients = false);
  // What a step yielded. Returns the number of tokens.
  int64_t add(std::span<const RequestDelta> deltas,
              const ModelRunnerOutput& output,
              EngineClock::time_point now);
  void publish() { outputs_.publish(batch_); }
  // No update follows; requests without an end get this one.
  void close(EngineEnd end) { outputs_.end(std::move(end)); }

 private:
  // When the request in a row was first seen running.
  struct RowStart {
    uint32_t generation = 0;
    EngineClock::time_point at;
  };

  OutputQueue& outputs_;
  RequestLog& requests_;
  OutputBatch batch_;
  std::vector<RowStart> row_starts_;  // [max_num_seqs]
};

}  // namespace warprow
