// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_loop.h"

#include "base/check.h"
#include "executor/mp/step_digest.h"
#include "wire/serialize.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace warprow {
namespace {

using Clock = Waiting::Clock;

// While the device runs, the rank waits for messages and looks for the end of the step in turn: the more seldom, the
// longer it takes already, so that a long step keeps its cores.
constexpr Clock::duration kShortestTurn = std::chrono::microseconds(20);
constexpr Clock::duration kLongestTurn = std::chrono::milliseconds(1);
constexpr int kTurnShare = 32;

template <typename Message>
void read_wire(const std::vector<uint8_t>& bytes, Message& message) {
  const Result<void> read = deserialize(bytes, message);
  WR_CHECK(read.has_value(), "{}", read.error().message);
}

}  // namespace

RankLoop::RankLoop(const RankLinks& links, int32_t rank, bool sends_outputs, Executor& executor)
    : abort_(links.abort),
      state_(links.state),
      commands_(links.commands),
      answers_(links.answers),
      tells_forward_done_(links.tells_forward_done),
      sends_digests_(links.sends_digests),
      rank_(rank),
      sends_outputs_(sends_outputs),
      executor_(executor) {}

bool RankLoop::run() {
  while (next_message()) {
    switch (static_cast<ToRank>(message_.kind)) {
      case ToRank::kStep:
      case ToRank::kStepAndSample:
        read_wire(message_.bytes, step_);
        while (executor_.num_outstanding() >= executor_.max_concurrent_batches()) {
          retire();
        }
        enter(RankPhase::kSubmitting);
        state_.step.store(step_.step, std::memory_order_relaxed);
        executor_.execute_model(step_);
        forward_pending_ = static_cast<ToRank>(message_.kind) == ToRank::kStep;
        if (!forward_pending_) {
          executor_.sample_tokens(nullptr);
        }
        break;
      case ToRank::kSample:
        read_wire(message_.bytes, grammar_);
        enter(RankPhase::kSubmitting);
        forward_pending_ = false;
        executor_.sample_tokens(&grammar_);
        break;
      case ToRank::kCall: {
        RankCall asked;
        decode(message_.bytes, asked);
        if (asked.rank < 0 || asked.rank == rank_) {
          call(asked);
        }
        break;
      }
      case ToRank::kStop:
        return true;
      case ToRank::kStart:
        WR_CHECK(false, "a rank starts once");
    }
  }
  return false;
}

bool RankLoop::next_message() {
  const Clock::time_point begin = Clock::now();
  while (!commands_.has_message() && (forward_pending_ || executor_.num_outstanding() > 0)) {
    enter(RankPhase::kRunning);
    if (forward_pending_ && executor_.forward_done()) {
      forward_pending_ = false;
      state_.forward_done.store(step_.step);
      if (tells_forward_done_) {
        answers_.write(static_cast<uint32_t>(FromRank::kForwardDone),
                       {reinterpret_cast<const uint8_t*>(&step_.step), sizeof step_.step});
      }
    } else if (executor_.num_outstanding() > 0 && executor_.output_ready()) {
      retire();
    } else if (abort_.raised()) {
      return false;
    } else {
      const Clock::time_point now = Clock::now();
      commands_.wait(now + std::clamp((now - begin) / kTurnShare, kShortestTurn, kLongestTurn));
    }
  }
  if (executor_.num_outstanding() == 0) {
    enter(RankPhase::kWaiting);
  }
  return commands_.read(message_);
}

void RankLoop::retire() {
  executor_.take_output(output_);
  state_.retired.fetch_add(1, std::memory_order_relaxed);
  if (sends_outputs_) {
    serialize(output_, bytes_);
    const ExecutorStats stats = executor_.stats();
    answers_.write(static_cast<uint32_t>(FromRank::kOutput),
                   {reinterpret_cast<const uint8_t*>(&stats), sizeof stats},
                   bytes_);
  }
  if (sends_digests_) {
    const StepDigest digest = digest_of(output_);
    answers_.write(static_cast<uint32_t>(FromRank::kDigest),
                   {reinterpret_cast<const uint8_t*>(&digest), sizeof digest});
  }
}

void RankLoop::call(const RankCall& asked) {
  enter(RankPhase::kOperation);
  RankReply reply{asked.id, false, ErrorCode::kInternal, {}};
  try {
    reply.text = std::move(
        executor_.collective_rpc(asked.operation, asked.argument, RankSet::only(0)).get().front());
  } catch (const StartupError& error) {
    reply.failed = true;
    reply.code = error.code();
    reply.text = error.what();
  }
  encode(reply, bytes_);
  answers_.write(static_cast<uint32_t>(FromRank::kReply), bytes_);
}

}  // namespace warprow
