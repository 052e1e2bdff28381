// SPDX-License-Identifier: Apache-2.0
#include "executor/external/rank_uplink.h"

#include "base/log.h"
#include "executor/external/rank_report.h"
#include "executor/mp/rank_messages.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <pthread.h>
#include <string>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kUplinkTurn = std::chrono::milliseconds(100);
constexpr auto kMostSilence = std::chrono::seconds(5);  // rank 0 sends five messages a second
constexpr auto kReportTime = std::chrono::milliseconds(100);
constexpr auto kNap = std::chrono::milliseconds(20);
constexpr auto kFlushTime = std::chrono::seconds(1);
constexpr auto kUplinkReasonTime = std::chrono::milliseconds(300);
constexpr auto kGraceAfterAbort = std::chrono::seconds(2);
constexpr int kAborted = 5;  // the exit code of a failure; see cli/exit_code.h

bool is_for_a_rank(uint32_t kind) {
  return kind > static_cast<uint32_t>(ToRank::kStart) &&
         kind <= static_cast<uint32_t>(ToRank::kStop);
}

}  // namespace

RankUplink::RankUplink(RankMemory& memory, int32_t rank, int32_t num_ranks, Socket socket)
    : control_(*memory.control),
      rank_(rank),
      num_ranks_(num_ranks),
      link_(std::move(socket), memory.control->abort),
      commands_(memory.commands, memory.control->abort),
      answers_(memory.answers.front(), 0, memory.control->abort),
      sender_([this] { send(); }),
      receiver_([this] { receive(); }) {
  pthread_setname_np(sender_.native_handle(), "wr-uplink-out");
  pthread_setname_np(receiver_.native_handle(), "wr-uplink-in");
}

RankUplink::~RankUplink() {
  stopping_.store(true);
  sender_.join();
  receiver_.join();
}

void RankUplink::flush() {
  const uint32_t asked = flushes_asked_.fetch_add(1) + 1;
  const Clock::time_point until = Clock::now() + kFlushTime;
  while (static_cast<int32_t>(flushes_done_.load() - asked) < 0 && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void RankUplink::receive() {
  RingMessage message;
  Clock::time_point heard = Clock::now();
  while (!stopping_.load() && !control_.abort.raised()) {
    switch (link_.receive(message, Clock::now() + kUplinkTurn)) {
      case RankLink::Received::kMessage:
        if (is_for_a_rank(message.kind)) {
          if (!commands_.write(message.kind, message.bytes) ||
              static_cast<ToRank>(message.kind) == ToRank::kStop) {
            return;
          }
        } else if (static_cast<LinkMessage>(message.kind) != LinkMessage::kBeat) {
          return lose("rank 0 has sent an invalid message");
        }
        heard = Clock::now();
        break;
      case RankLink::Received::kClosed:
        return lose("rank 0 has closed the connection");
      case RankLink::Received::kDamaged:
        return lose("rank 0 has sent a damaged message");
      case RankLink::Received::kNothing:
        if (Clock::now() - heard > kMostSilence) {
          return lose("rank 0 has said nothing for 5 s");
        }
        break;
    }
  }
}

// The reason of a lost connection soon arrives through the watch of aborts.
void RankUplink::lose(const char* why) {
  const Clock::time_point until = Clock::now() + kUplinkReasonTime;
  while (!control_.abort.raised() && !stopping_.load() && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (!stopping_.load() && control_.abort.raise(0, AbortPhase::kConnectionLost)) {
    WR_LOG_ERROR("rank {}: {}", rank_, why);
  }
}

// A connection that is lost is noticed where messages arrive.
void RankUplink::send_report() {
  encode_report(control_.ranks[rank_], report_);
  link_.send(static_cast<uint32_t>(LinkMessage::kReport), report_);
}

void RankUplink::send() {
  RingMessage message;
  Clock::time_point next_report = Clock::now();
  std::optional<Clock::time_point> aborted;
  for (;;) {
    const bool stopping = stopping_.load();  // before the last look at the ring
    const uint32_t asked = flushes_asked_.load();
    const bool hurries = stopping || asked != flushes_done_.load();
    const Clock::time_point now = Clock::now();
    while (answers_.has_message() && answers_.read(message)) {
      link_.send(message.kind, message.bytes);
    }
    if (hurries || now >= next_report) {
      send_report();
      next_report = now + kReportTime;
    }
    flushes_done_.store(asked);
    if (stopping) {
      return;
    }
    if (!control_.abort.raised()) {
      answers_.wait(now + kNap);
      continue;
    }
    std::this_thread::sleep_for(kNap);
    aborted = aborted.value_or(now);
    if (now - *aborted > kGraceAfterAbort) {
      receiver_.join();  // it has ended with the abort; the destructor waits for this thread first
      const std::optional<AbortCause> cause = control_.abort.cause();
      fmt::print(stderr,
                 "warprow: rank {} of {}: rank {} {}\n",
                 rank_,
                 num_ranks_,
                 cause->rank,
                 abort_phase_name(cause->phase));
      ::_exit(kAborted);
    }
  }
}

}  // namespace warprow
