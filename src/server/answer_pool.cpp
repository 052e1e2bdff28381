// SPDX-License-Identifier: Apache-2.0
#include "server/answer_pool.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace warprow {
namespace {

// Work of clients runs below the engine's priority.
constexpr int kSmallTextNice = 2;
constexpr int kLargeTextNice = 12;

// One client may not use all threads of a lane, so each lane has at least two.
AnswerLane::Limits text_limits(size_t most_waiting, size_t of_client, bool large) {
  constexpr size_t kMost = 8;
  const size_t num_threads =
      std::clamp<size_t>(std::thread::hardware_concurrency() / (large ? 2 : 1), 2, kMost);
  return {.num_threads = num_threads,
          .most_waiting = most_waiting,
          .most_waiting_of_client = of_client,
          .most_running_of_client = num_threads - 1,
          .nice = large ? kLargeTextNice : kSmallTextNice};
}

// Its threads mostly wait for worker processes, so there are more than cores. A client has one more than there are slots
// for slow grammars (rust/textkit/src/grammar.rs), so that its quick ones pass.
AnswerLane::Limits grammar_limits(size_t most_waiting, size_t of_client) {
  constexpr size_t kThreads = 8;
  return {.num_threads = kThreads,
          .most_waiting = most_waiting,
          .most_waiting_of_client = of_client,
          .most_running_of_client = 3,
          .nice = kSmallTextNice};
}

AnswerLane::Limits engine_limits(size_t most_waiting, size_t of_client, size_t num_threads) {
  return {.num_threads = num_threads,
          .most_waiting = most_waiting,
          .most_waiting_of_client = of_client,
          .most_running_of_client = num_threads};
}

}  // namespace

AnswerPool::AnswerPool(size_t most_waiting, size_t most_waiting_of_client)
    : small_texts_(text_limits(most_waiting, most_waiting_of_client, false)),
      large_texts_(text_limits(most_waiting, most_waiting_of_client, true)),
      grammars_(grammar_limits(most_waiting, most_waiting_of_client)),
      reports_(engine_limits(most_waiting, most_waiting_of_client, 2)),
      // One may wait for requests to end, for as long as they take.
      commands_(engine_limits(most_waiting, most_waiting_of_client, 2)) {}

bool AnswerPool::submit(Lane lane, const std::string& client, std::function<void()> job) {
  switch (lane) {
    case Lane::kSmallText:
      return small_texts_.submit(client, std::move(job));
    case Lane::kLargeText:
      return large_texts_.submit(client, std::move(job));
    case Lane::kGrammar:
      return grammars_.submit(client, std::move(job));
    case Lane::kReport:
      return reports_.submit(client, std::move(job));
    case Lane::kCommand:
      break;
  }
  return commands_.submit(client, std::move(job));
}

}  // namespace warprow
