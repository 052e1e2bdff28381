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

// The ranks that an operation is for.
struct RankSet {
  std::optional<int32_t> one;  // nullopt: all ranks
  static RankSet all() { return {}; }
  static RankSet only(int32_t rank) { return {rank}; }
};

// Each rank's answer as text, by rank.
using RankReplies = std::future<std::vector<std::string>>;

// The future answers to an operation. Dropping this cancels nothing: an operation that was sent runs on its ranks,
// and its answers are lost. If the executor ends before every answer came, get() throws a std::future_error.
//
// Owns: the future.
// Thread: any, one at a time. The engine thread must not wait for a rank that waits for the engine: it calls
// ready(), or waits when no step is in flight.
template <typename Operation>
class RankAnswers {
 public:
  explicit RankAnswers(RankReplies replies) : replies_(std::move(replies)) {}

  [[nodiscard]] bool ready() const {
    return replies_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  // Blocks until every rank has answered. Call it once. Throws what the operation threw on the first rank that
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
