// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace warprow {

// Which ranks an operation is for.
struct RankSet {
  std::optional<int32_t> one;  // nothing: all of them
  static RankSet all() { return {}; }
  static RankSet only(int32_t rank) { return {rank}; }
};

// Each rank's answer as text, by rank.
using RankReplies = std::future<std::vector<std::string>>;

// The answers to an operation, when they are there. Dropping this cancels nothing: an operation that
// was sent runs on its ranks, and its answers are lost. An executor that ends before it has every answer
// leaves a std::future_error.
//
// Owns: the future.
// Thread: any, one at a time. The engine's must not wait for a rank that waits for the engine: it asks
// ready(), or asks when no step is in flight.
template <typename Operation>
class RankAnswers {
 public:
  explicit RankAnswers(RankReplies replies) : replies_(std::move(replies)) {}

  [[nodiscard]] bool ready() const {
    return replies_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  // Blocks until every rank has answered; once. Throws what the operation threw on the first rank that
  // failed.
  std::vector<typename Operation::Answer> get() {
    std::vector<typename Operation::Answer> answers;
    for (std::string& reply : replies_.get()) {
      answers.push_back(Operation::decode(std::move(reply)));
    }
    return answers;
  }

 private:
  RankReplies replies_;
};

}  // namespace warprow
