// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/answer_lane.h"

#include <cstddef>
#include <functional>
#include <string>

namespace warprow {

// Thread pools for answers that take time. Each kind of work has its own lane, so that no kind waits for another: small
// texts, large texts, requests whose grammar must be compiled, reports on the engine, and commands to the engine.
//
// Thread: any.
class AnswerPool {
 public:
  // A larger body is a large text. Encoding this many bytes takes some ten milliseconds.
  static constexpr size_t kMostSmallBytes = 32 * 1024;

  enum class Lane { kSmallText, kLargeText, kGrammar, kReport, kCommand };

  // most_waiting: limit of waiting jobs in each lane. most_waiting_of_client: the same limit for one client.
  AnswerPool(size_t most_waiting, size_t most_waiting_of_client);

  // false: too many jobs wait in that lane.
  [[nodiscard]] bool submit(Lane lane, const std::string& client, std::function<void()> job);

 private:
  AnswerLane small_texts_;
  AnswerLane large_texts_;
  AnswerLane grammars_;
  AnswerLane reports_;
  AnswerLane commands_;
};

}  // namespace warprow
