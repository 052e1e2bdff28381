// SPDX-License-Identifier: Apache-2.0
#include "engine/output_loop.h"

#include "base/log.h"

#include <exception>
#include <utility>

namespace warprow {

void OutputLoop::run() noexcept {
  OutputWork work;
  work.batch.reserve(queue_.max_deltas());
  while (queue_.take(work)) {
    for (std::unique_ptr<RequestOutput>& request : work.arrivals) {
      const RequestId id = request->id();
      live_.emplace(id, std::move(request));
    }
    for (const OutputDelta& delta : work.batch.deltas) {
      take_delta(work.batch, delta);
    }
    if (work.end.reason != FinishReason::kNone) {
      end_all(work.end);
    }
  }
}

void OutputLoop::take_delta(const OutputBatch& batch, const OutputDelta& delta) {
  const auto found = live_.find(delta.id);
  if (found == live_.end()) {
    return;  // it ended here before the engine took its stop command
  }
  bool ended = true;
  try {
    ended = found->second->take(batch, delta);
  } catch (const std::exception& exception) {
    // A client's callback or the text conversion failed: only this request is lost.
    WR_LOG_ERROR("request {} failed: {}", delta.id, exception.what());
  }
  if (ended) {
    live_.erase(found);
    if (delta.reason == FinishReason::kNone) {
      inbox_.stop(delta.id);
    }
  }
}

void OutputLoop::end_all(const EngineEnd& end) {
  // Callbacks may submit, which only adds to the queue.
  for (auto& [id, request] : live_) {
    try {
      request->end(end.reason, end.error);
    } catch (const std::exception& exception) {
      WR_LOG_ERROR("request {}: {}", id, exception.what());
    }
  }
  live_.clear();
}

}  // namespace warprow
