// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/inbox.h"
#include "engine/output_queue.h"
#include "engine/request_output.h"

#include <memory>
#include <unordered_map>

namespace warprow {

// The output thread's work: turns deltas into text, runs the clients' callbacks, and reports stop strings to the
// engine thread.
//
// Owns: the requests that have not had their final update.
// Thread: run() is the output thread's body.
// Invariant: a request leaves when its final update is given, so there is never a second one; what
// the engine still sends for it is dropped.
class OutputLoop {
 public:
  OutputLoop(OutputQueue& queue, Inbox& inbox) : queue_(queue), inbox_(inbox) {}

  // Until the queue is closed and empty.
  void run() noexcept;

 private:
  using Live = std::unordered_map<RequestId, std::unique_ptr<RequestOutput>>;

  void take_delta(const OutputBatch& batch, const OutputDelta& delta);
  void end_all(const EngineEnd& end);

  OutputQueue& queue_;
  Inbox& inbox_;
  Live live_;
};

}  // namespace warprow
