// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_watch.h"

#include "base/log.h"

#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kStoppedAfter = std::chrono::milliseconds(400);  // without a beat; then its state is read
constexpr auto kFrozenAfter = std::chrono::seconds(30);         // without a beat, whatever its state
constexpr auto kGraceAfterFailure = std::chrono::seconds(4);
constexpr auto kGraceAtEnd = std::chrono::seconds(2);

}  // namespace

RankWatch::RankWatch(ControlBlock& control,
                     std::vector<RankProcess> processes,
                     std::chrono::milliseconds step_limit,
                     OnFailure on_failure)
    : control_(control),
      processes_(std::move(processes)),
      seen_(processes_.size(), {0, Clock::now(), 0, Clock::now()}),
      step_limit_(step_limit),
      on_failure_(std::move(on_failure)),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

RankWatch::~RankWatch() {
  expect_end();
  thread_.request_stop();
  thread_.join();
  const Clock::time_point until = Clock::now() + kGraceAtEnd;
  for (RankProcess& process : processes_) {
    while (!process.ended() && Clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

void RankWatch::watch(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const Clock::time_point now = Clock::now();
    if (!failed_at_ && !ending_.load()) {
      if (const std::optional<std::string> why = trouble(now)) {
        failed_at_ = now;
        fail(*why);
      }
    }
    if (failed_at_ && now - *failed_at_ > kGraceAfterFailure) {
      for (RankProcess& process : processes_) {
        process.kill();
      }
    }
    std::this_thread::sleep_for(kTick);
  }
}

void RankWatch::fail(const std::string& why) {
  WR_LOG_ERROR("{}", why);
  control_.abort.raise(0, AbortPhase::kProcessEnded);
  on_failure_(why);
}

std::string RankWatch::name(int32_t rank) {
  RankProcess& process = processes_[static_cast<size_t>(rank)];
  return fmt::format("rank {} of {} (process {})", rank, processes_.size(), process.pid());
}

// The rank that raised the flag is the cause; the others end because of it.
std::optional<std::string> RankWatch::trouble(Clock::time_point now) {
  if (const std::optional<AbortCause> cause = control_.abort.cause()) {
    const std::string why = control_.ranks[cause->rank].failure();
    return fmt::format(
        "{} {}{}{}", name(cause->rank), abort_phase_name(cause->phase), why.empty() ? "" : ": ", why);
  }
  for (int32_t rank = 0; rank < static_cast<int32_t>(processes_.size()); ++rank) {
    if (std::optional<std::string> why = trouble_of(rank, now)) {
      return why;
    }
  }
  return std::nullopt;
}

std::optional<std::string> RankWatch::trouble_of(int32_t rank, Clock::time_point now) {
  RankProcess& process = processes_[static_cast<size_t>(rank)];
  RankState& state = control_.ranks[rank];
  Seen& seen = seen_[static_cast<size_t>(rank)];
  const std::string_view phase = rank_phase_name(state.phase.load());
  const int64_t step = state.step.load();
  if (const auto& end = process.ended()) {
    const std::string why = state.failure();
    return fmt::format("{} ended with {} in phase {}, step {}{}{}",
                       name(rank),
                       *end,
                       phase,
                       step,
                       why.empty() ? "" : ": ",
                       why);
  }
  if (const uint32_t beats = state.beats.load(); beats != seen.beats) {
    seen.beats = beats;
    seen.beat_at = now;
  }
  const bool is_stopped = now - seen.beat_at > kStoppedAfter && process.is_stopped();
  if (is_stopped || now - seen.beat_at > kFrozenAfter) {
    return fmt::format("{} is stopped in phase {}, step {}", name(rank), phase, step);
  }
  const int64_t retired = state.retired.load();
  if (retired != seen.retired || retired >= submitted_.load(std::memory_order_relaxed)) {
    seen.retired = retired;
    seen.retired_at = now;
  }
  if (now - seen.retired_at > step_limit_) {
    return fmt::format("{} has finished no step for {:.1f} s: phase {}, step {}",
                       name(rank),
                       std::chrono::duration<double>(step_limit_).count(),
                       phase,
                       step);
  }
  return std::nullopt;
}

}  // namespace warprow
