// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_watch.h"

#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kStoppedAfter =
    std::chrono::milliseconds(400);                      // without a beat; then its state is read
constexpr auto kFrozenAfter = std::chrono::seconds(30);  // without a beat, whatever its state
constexpr auto kSilentAfter = std::chrono::seconds(5);   // without a beat of a process elsewhere
// For a rank that a launcher started: how late the reason of its failure, and the report of its progress, may arrive.
constexpr auto kWatchReasonTime = std::chrono::milliseconds(400);
constexpr auto kReportLag = std::chrono::milliseconds(300);
constexpr auto kGraceAfterFailure = std::chrono::seconds(4);
constexpr auto kGraceAtEnd = std::chrono::seconds(2);

}  // namespace

RankWatch::RankWatch(ControlBlock& control,
                     std::vector<RankProcess> processes,
                     int32_t num_ranks,
                     OnFailure on_failure)
    : control_(control),
      processes_(std::move(processes)),
      seen_(static_cast<size_t>(num_ranks), {0, Clock::now(), 0, Clock::now()}),
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
    if (!failed_at_) {
      if (const std::optional<Trouble> found = trouble(now)) {
        failed_at_ = now;
        fail(*found);
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

void RankWatch::fail(const Trouble& trouble) {
  // Whether a process of another host has ended is not known.
  control_.abort.raise(
      trouble.rank,
      has_process(trouble.rank) ? AbortPhase::kProcessEnded : AbortPhase::kConnectionLost);
  on_failure_(trouble.why);
}

std::string RankWatch::name(int32_t rank) const {
  if (has_process(rank)) {
    return fmt::format("rank {} of {} (process {})",
                       rank,
                       seen_.size(),
                       processes_[static_cast<size_t>(rank)].pid());
  }
  const char* const where = control_.ranks[rank].where;
  return fmt::format(
      "rank {} of {} ({})", rank, seen_.size(), *where == 0 ? "which has not connected" : where);
}

std::string RankWatch::position(int32_t rank) const {
  const RankState& state = control_.ranks[rank];
  return fmt::format(
      "in phase {}, step {}", rank_phase_name(state.phase.load()), state.step.load());
}

std::optional<RankWatch::Trouble> RankWatch::trouble(Clock::time_point now) {
  if (const std::optional<AbortCause> cause = control_.abort.cause()) {
    return ending_.load() ? std::nullopt : told_trouble(*cause, now);
  }
  for (int32_t rank = 0; rank < static_cast<int32_t>(seen_.size()); ++rank) {
    if (std::optional<std::string> why = trouble_of(rank, now)) {
      return Trouble{rank, *std::move(why)};
    }
  }
  return stall(now);
}

// The rank that raised the flag is the cause; the others end because of it.
std::optional<RankWatch::Trouble> RankWatch::told_trouble(AbortCause cause, Clock::time_point now) {
  told_at_ = told_at_.value_or(now);
  const std::string why = control_.ranks[cause.rank].failure();
  const bool has_reason = cause.phase == AbortPhase::kStep || cause.phase == AbortPhase::kLoad;
  if (!has_process(cause.rank) && has_reason && why.empty() && now - *told_at_ < kWatchReasonTime) {
    return std::nullopt;
  }
  return Trouble{cause.rank,
                 fmt::format("{} {}{}{}{}",
                             name(cause.rank),
                             abort_phase_name(cause.phase),
                             has_process(cause.rank) ? "" : " " + position(cause.rank),
                             why.empty() ? "" : ": ",
                             why)};
}

std::optional<std::string> RankWatch::trouble_of(int32_t rank, Clock::time_point now) {
  Seen& seen = seen_[static_cast<size_t>(rank)];
  if (const uint32_t beats = control_.ranks[rank].beats.load(); beats != seen.beats) {
    seen.beats = beats;
    seen.beat_at = now;
  }
  const Clock::duration silence = now - seen.beat_at;
  if (has_process(rank)) {
    return trouble_of_process(rank, silence);
  }
  if (seen.beats > 0 && silence > kSilentAfter && !ending_.load()) {
    return fmt::format("{} has given no sign of life for {} s, {}",
                       name(rank),
                       std::chrono::seconds(kSilentAfter).count(),
                       position(rank));
  }
  return std::nullopt;
}

std::optional<std::string> RankWatch::trouble_of_process(int32_t rank, Clock::duration silence) {
  RankProcess& process = processes_[static_cast<size_t>(rank)];
  if (const auto& end = process.ended()) {
    if (ending_.load()) {
      return std::nullopt;
    }
    const std::string why = control_.ranks[rank].failure();
    return fmt::format(
        "{} ended with {} {}{}{}", name(rank), *end, position(rank), why.empty() ? "" : ": ", why);
  }
  const bool is_stopped = silence > kStoppedAfter && process.is_stopped();
  if (is_stopped || silence > kFrozenAfter) {
    return fmt::format("{} is stopped {}", name(rank), position(rank));
  }
  return std::nullopt;
}

// The other ranks wait for the rank that has stalled. That is the one that has begun the fewest steps, and of several such
// ranks one that has not yet passed the step to its device.
std::optional<RankWatch::Trouble> RankWatch::stall(Clock::time_point now) {
  const std::chrono::milliseconds limit = step_limit_.load();
  const int64_t submitted = submitted_.load(std::memory_order_relaxed);
  bool is_over = false;
  std::optional<int32_t> found;
  std::pair<int64_t, bool> least;
  for (int32_t rank = 0; rank < static_cast<int32_t>(seen_.size()); ++rank) {
    const RankState& state = control_.ranks[rank];
    Seen& seen = seen_[static_cast<size_t>(rank)];
    const int64_t retired = state.retired.load();
    if (retired != seen.retired || retired >= submitted) {
      seen.retired = retired;
      seen.retired_at = now;
    }
    const std::pair at(state.step.load(), state.phase.load() == RankPhase::kRunning);
    const Clock::duration took = now - seen.retired_at;
    is_over |= took > limit;
    if (took > limit - (has_process(rank) ? Clock::duration{} : kReportLag) &&
        (!found || at < least)) {
      found = rank;
      least = at;
    }
  }
  if (!is_over) {
    return std::nullopt;
  }
  return Trouble{*found,
                 fmt::format("{} has finished no step for {:.1f} s: phase {}, step {}",
                             name(*found),
                             std::chrono::duration<double>(limit).count(),
                             rank_phase_name(control_.ranks[*found].phase.load()),
                             least.first)};
}

}  // namespace warprow
