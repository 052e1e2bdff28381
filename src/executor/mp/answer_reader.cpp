// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/answer_reader.h"

#include "base/check.h"
#include "wire/serialize.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

// How long answers of other ranks may lie unread while the output rank's are awaited.
constexpr auto kAnswerTurn = std::chrono::milliseconds(1);
// How long the watching thread may need to say why the abort flag is raised, and a rank why it ends.
constexpr auto kReport = std::chrono::seconds(1);

// Settings and files are the same for every rank. Memory is the rank's own.
std::string message_of(const RankFailure& failure, int32_t rank) {
  const bool same_everywhere = failure.code == ErrorCode::kInvalidArgument ||
                               failure.code == ErrorCode::kUnsupported ||
                               failure.code == ErrorCode::kNotFound;
  return same_everywhere ? failure.message : fmt::format("rank {}: {}", rank, failure.message);
}

}  // namespace

AnswerReader::AnswerReader(RankMemory& memory, int32_t output_rank)
    : control_(*memory.control),
      num_ranks_(static_cast<int32_t>(memory.answers.size())),
      stage_size_(num_ranks_ - output_rank),
      output_rank_(output_rank) {
  for (const MessageRing& ring : memory.answers) {
    readers_.emplace_back(ring, 0, memory.control->abort);
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { read(stop); });
}

void AnswerReader::read(const std::stop_token& stop) {
  RingMessage message;
  while (!stop.stop_requested()) {
    for (int32_t rank = 0; rank < num_ranks_; ++rank) {
      RingReader& reader = readers_[static_cast<size_t>(rank)];
      while (reader.has_message() && reader.read(message)) {
        handle(rank, message);
      }
    }
    // The wait looks at the abort flag now and then, and ends with it.
    const auto patience = is_waiting_for_all() ? kAnswerTurn : 20 * kAnswerTurn;
    const auto until = Waiting::Clock::now() + patience;
    if (!readers_[static_cast<size_t>(output_rank_)].wait(until)) {
      std::this_thread::sleep_until(std::min(until, Waiting::Clock::now() + kAnswerTurn));
    }
  }
}

// Whether an answer may come from any rank, not only from the one with the outputs.
bool AnswerReader::is_waiting_for_all() const {
  const std::scoped_lock lock(mutex_);
  return num_ready_ < num_ranks_ || !calls_.empty() || !digests_.empty();
}

void AnswerReader::handle(int32_t rank, const RingMessage& message) {
  switch (static_cast<FromRank>(message.kind)) {
    case FromRank::kReady: {
      RankReady ready;
      decode(message.bytes, ready);
      const std::scoped_lock lock(mutex_);
      ++num_ready_;
      if (rank == output_rank_) {
        ready_ = std::move(ready);
      }
      break;
    }
    case FromRank::kStartFailed: {
      RankFailure failure;
      decode(message.bytes, failure);
      const std::scoped_lock lock(mutex_);
      if (!start_error_) {
        start_error_.emplace(failure.code, message_of(failure, rank));
      }
      break;
    }
    case FromRank::kOutput:
      add_output(message);
      break;
    case FromRank::kReply: {
      RankReply reply;
      decode(message.bytes, reply);
      add_reply(rank, std::move(reply));
      break;
    }
    case FromRank::kDigest:
      compare(rank, message);
      break;
    case FromRank::kForwardDone:  // it is in the rank's state
      break;
  }
  changed_.notify_all();
}

void AnswerReader::add_output(const RingMessage& message) {
  const std::scoped_lock lock(mutex_);
  std::vector<uint8_t> bytes;
  if (!free_.empty()) {
    bytes = std::move(free_.back());
    free_.pop_back();
  }
  std::memcpy(&stats_, message.bytes.data(), sizeof stats_);
  bytes.assign(message.bytes.begin() + sizeof stats_, message.bytes.end());
  outputs_.push_back(std::move(bytes));
  notify();
}

// Under the lock, so that wake_up_ is not notified after set_wake_up(nullptr).
void AnswerReader::notify() {
  changed_.notify_all();
  if (wake_up_ != nullptr) {
    wake_up_->notify();
  }
}

// Digests of a step come from all ranks of the last stage, in the order of steps from each.
void AnswerReader::compare(int32_t rank, const RingMessage& message) {
  StepDigest digest;
  std::memcpy(&digest, message.bytes.data(), sizeof digest);
  const auto found = std::ranges::find_if(
      digests_, [&](const Digest& other) { return other.digest.step >= digest.step; });
  if (found == digests_.end() || found->digest.step != digest.step) {
    digests_.insert(found, {digest, rank});
    return;
  }
  if (const std::string why = difference(found->digest, found->rank, digest, rank); !why.empty()) {
    control_.ranks[rank].fail(why);
    control_.abort.raise(rank, AbortPhase::kStep);
  }
  if (++found->num_ranks == stage_size_) {
    digests_.erase(found);
  }
}

void AnswerReader::add_reply(int32_t rank, RankReply reply) {
  const std::scoped_lock lock(mutex_);
  const auto found = calls_.find(reply.id);
  WR_CHECK(
      found != calls_.end(), "rank {} answers operation {}, which is not open", rank, reply.id);
  Call& call = found->second;
  if (reply.failed && !call.error) {
    call.error = std::make_exception_ptr(StartupError(reply.code, reply.text));
  }
  call.texts[static_cast<size_t>(rank - call.first_rank)] = std::move(reply.text);
  if (--call.num_missing > 0) {
    return;
  }
  if (call.error) {
    call.promise.set_exception(call.error);
  } else {
    call.promise.set_value(std::move(call.texts));
  }
  calls_.erase(found);
}

RankReady AnswerReader::wait_until_ready() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [this] { return num_ready_ == num_ranks_ || start_error_ || !failure_.empty(); });
  // A rank says why it cannot start, and ends. The end may be noticed first.
  changed_.wait_for(lock, kReport, [this] { return num_ready_ == num_ranks_ || start_error_; });
  if (start_error_) {
    throw StartupError(*start_error_);
  }
  if (!failure_.empty()) {
    throw StartupError(ErrorCode::kInternal, failure_);
  }
  return ready_;
}

RankReplies AnswerReader::expect_replies(uint64_t id, int32_t rank) {
  const std::scoped_lock lock(mutex_);
  Call& call = calls_[id];
  call.num_missing = rank < 0 ? num_ranks_ : 1;
  call.first_rank = std::max(rank, 0);
  call.texts.resize(static_cast<size_t>(call.num_missing));
  return call.promise.get_future();
}

bool AnswerReader::output_ready() const {
  const std::scoped_lock lock(mutex_);
  return !outputs_.empty() || !failure_.empty();
}

void AnswerReader::take_output(ModelRunnerOutput& output) {
  std::vector<uint8_t> bytes;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !outputs_.empty() || !failure_.empty(); });
    if (outputs_.empty()) {
      throw std::runtime_error(failure_);
    }
    bytes = std::move(outputs_.front());
    outputs_.pop_front();
  }
  const Result<void> read = deserialize(bytes, output);
  WR_CHECK(read.has_value(), "{}", read.error().message);
  const std::scoped_lock lock(mutex_);
  free_.push_back(std::move(bytes));
}

ExecutorStats AnswerReader::stats() const {
  const std::scoped_lock lock(mutex_);
  return stats_;
}

void AnswerReader::set_wake_up(WakeUp* wake_up) {
  const std::scoped_lock lock(mutex_);
  wake_up_ = wake_up;
}

// Replies that are missing never come.
void AnswerReader::fail(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  failure_ = why;
  for (auto& [id, call] : calls_) {
    call.promise.set_exception(std::make_exception_ptr(StartupError(ErrorCode::kInternal, why)));
  }
  calls_.clear();
  notify();
}

void AnswerReader::throw_if_failed() const {
  const std::scoped_lock lock(mutex_);
  if (!failure_.empty()) {
    throw std::runtime_error(failure_);
  }
}

void AnswerReader::throw_failure() const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kReport, [this] { return !failure_.empty(); });
  throw std::runtime_error(failure_.empty() ? "a rank has failed" : failure_);
}

}  // namespace warprow
