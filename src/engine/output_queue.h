// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/output_batch.h"
#include "engine/request_output.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace warprow {

// How requests end after the engine has stopped.
struct EngineEnd {
  FinishReason reason = FinishReason::kNone;  // kNone: the engine runs
  std::string error;
};

// Everything that the output thread has to process.
struct OutputWork {
  std::vector<std::unique_ptr<RequestOutput>> arrivals;
  OutputBatch batch;
  EngineEnd end;
};

// From the engine thread (deltas) and the submitting threads (new requests) to the output thread.
// The engine swaps its batch in, and waits when the output thread is kMaxPending deltas behind.
//
// Owns: what is pending.
// Thread: add any; publish and end the engine's; close the engine's owner; take the output's.
// Invariant: a request is added before its first delta is published, so take() never returns a delta of an unknown
// request.
class OutputQueue {
 public:
  static constexpr size_t kMaxPending = 4096;

  // max_step_deltas: the most that one step yields.
  explicit OutputQueue(size_t max_step_deltas);

  // The most deltas that can be pending. The batches on both sides of the queue need room for them,
  // since they are swapped.
  [[nodiscard]] size_t max_deltas() const { return max_deltas_; }

  void add(std::unique_ptr<RequestOutput> request);
  // Takes the batch's content; the batch comes back empty, with some capacity.
  void publish(OutputBatch& batch);
  // Called after the last publish(): requests without a final update, and all that are added later, end
  // as `how` says.
  void end(EngineEnd how);
  // Makes take() return false once everything was handed out.
  void close();

  // Waits for work and swaps it in; false when closed and nothing is left.
  bool take(OutputWork& work);

 private:
  const size_t max_deltas_;
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::condition_variable has_room_;
  OutputWork pending_;
  bool end_is_news_ = false;
  bool closed_ = false;
};

}  // namespace warprow
