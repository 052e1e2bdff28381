// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/answer_lane.h"

#include <cstddef>
#include <functional>
#include <string>

namespace warprow {

// The threads that make answers which take time, in lanes, so that none of these waits for another: small texts,
// large texts, reports on the engine, and commands to it.
//
// Thread: any.
class AnswerPool {
 public:
  // Bodies of more bytes than this are large. Encoding as much takes some ten milliseconds.
  static constexpr size_t kMostSmallBytes = 32 * 1024;

  enum class Lane { kSmallText, kLargeText, kReport, kCommand };

  // most_waiting: in each lane, and of one client in it.
  AnswerPool(size_t most_waiting, size_t most_waiting_of_client);

  // false: too many wait in that lane.
  [[nodiscard]] bool submit(Lane lane, const std::string& client, std::function<void()> job);

 private:
  AnswerLane small_texts_;
  AnswerLane large_texts_;
  AnswerLane reports_;
  AnswerLane commands_;
};

}  // namespace warprow
