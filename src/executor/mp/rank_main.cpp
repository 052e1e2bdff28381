// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_main.h"

#include "base/error.h"
#include "base/log.h"
#include "comm/cpu/shared_memory_communicator.h"
#include "comm/rank_place.h"
#include "comm/shared_host_group.h"
#include "comm/shared_memory.h"
#include "executor/external/launch.h"
#include "executor/external/rank_meeting.h"
#include "executor/external/rank_relay.h"
#include "executor/mp/heartbeat.h"
#include "executor/mp/local_rank.h"
#include "executor/mp/rank_exit.h"
#include "executor/mp/rank_loop.h"
#include "executor/mp/rank_memory.h"
#include "executor/mp/rank_messages.h"
#include "executor/mp/rank_process.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <fcntl.h>
#include <memory>
#include <sys/prctl.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// How long a rank waits at start for another that loads more slowly.
constexpr std::chrono::minutes kPatience{30};

// Descriptors of the parent that were not closed on exec, such as its listening socket.
void close_inherited() {
  constexpr long kMost = 65536;
  const auto end = static_cast<int>(std::min(::sysconf(_SC_OPEN_MAX), kMost));
  for (int fd = kRankLifeFd + 1; fd < end; ++fd) {
    ::close(fd);
  }
  for (const int fd : {kRankMemoryFd, kRankLifeFd}) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

template <typename Message>
void send(RingWriter& answers, FromRank kind, const Message& message) {
  std::vector<uint8_t> bytes;
  encode(message, bytes);
  answers.write(static_cast<uint32_t>(kind), bytes);
}

// The communicators of a rank, and its share of the host.
//
// Owns: all of it.
class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual RankComms comms() const = 0;
  [[nodiscard]] virtual HostShare share() const = 0;
};

// Memory that all ranks share, which the executor started.
class SharedTransport final : public Transport {
 public:
  SharedTransport(const RankPlace& place, const RankMemory& memory)
      : place_(place),
        tensor_(make_shared_memory_communicator(
            place.tensor,
            memory.tensor_groups[static_cast<size_t>(place.pipeline.rank)],
            memory.control->abort)),
        all_(make_shared_host_group(
            {place.rank, place.world_size()}, memory.all_ranks, memory.control->abort, kPatience)) {
    if (place.pipeline.size > 1) {
      pipeline_ = make_shared_memory_communicator(
          place.pipeline,
          memory.stage_groups[static_cast<size_t>(place.tensor.rank)],
          memory.control->abort,
          stage_slots(place.pipeline.size));
    }
  }

  [[nodiscard]] RankComms comms() const override {
    return {place_.tensor.size > 1 ? tensor_.get() : nullptr,
            place_.world_size() > 1 ? all_.get() : nullptr,
            pipeline_.get()};
  }
  [[nodiscard]] HostShare share() const override { return HostShare::of_one_host(place_); }

 private:
  RankPlace place_;
  std::unique_ptr<Communicator> tensor_;
  std::unique_ptr<Communicator> pipeline_;  // null in one stage
  std::unique_ptr<HostGroup> all_;
};

// Of rank 0 where a launcher started the ranks. Its process relays the executor's messages to the other ranks.
class LaunchedTransport final : public Transport {
 public:
  LaunchedTransport(const EngineConfig& config, const RankPlace& place, RankMemory& memory)
      : meeting_(config, value_or_throw(read_launch()), place, memory.control->abort),
        relay_(memory, meeting_) {}

  [[nodiscard]] RankComms comms() const override { return meeting_.comms(); }
  [[nodiscard]] HostShare share() const override { return meeting_.share(); }

 private:
  RankMeeting meeting_;
  RankRelay relay_;
};

std::unique_ptr<Transport> make_transport(const EngineConfig& config,
                                          const RankPlace& place,
                                          RankMemory& memory) {
  if (is_external(config)) {
    return std::make_unique<LaunchedTransport>(config, place, memory);
  }
  return std::make_unique<SharedTransport>(place, memory);
}

int run(const RankMemory& memory, const RankLinks& links, const RankPlace& place, LocalRank& rank) {
  try {
    RankLoop loop(links, place.rank, place.rank == place.output_rank(), rank.executor());
    return loop.run() ? kRankStopped : kRankAborted;
  } catch (const std::exception& error) {
    // Report it before the rank is destroyed: that waits for the device, which may wait for the other ranks.
    links.state.fail(error.what());
    memory.control->abort.raise(place.rank, AbortPhase::kStep);
    return kRankFailed;
  }
}

}  // namespace

int rank_main(const RankArguments& arguments, const WrapRank& wrap) {
  close_inherited();
  ::prctl(PR_SET_NAME, fmt::format("wr-rank-{}", arguments.rank).c_str());
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns; RankLoop sleeps for microseconds
  // Ctrl-C reaches the whole process group. The parent ends its ranks in order.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  const SharedMemory shared = SharedMemory::open(kRankMemoryFd);
  const RankPlace place =
      rank_place(arguments.rank, arguments.tensor_size, arguments.pipeline_size);
  RankMemory memory(shared.data(), place.tensor.size, place.pipeline.size);
  ControlBlock& control = *memory.control;
  RankState& state = control.ranks[place.rank];
  const Heartbeat heartbeat(control, place.rank, kRankLifeFd);
  RingReader commands(memory.commands, place.rank, control.abort);
  RingWriter answers(memory.answers[static_cast<size_t>(place.rank)], control.abort);
  RingMessage message;
  if (!commands.read(message)) {
    return kRankAborted;
  }
  RankStart start;
  decode(message.bytes, start);
  init_logging(start.config.log_level, start.config.log_format);
  state.phase.store(RankPhase::kLoading);
  std::unique_ptr<Transport> transport;  // outlives the rank
  std::unique_ptr<LocalRank> rank;
  RankFailure failure;
  try {
    transport = make_transport(start.config, place, memory);
    rank = std::make_unique<LocalRank>(
        start.config, place, transport->share(), transport->comms(), wrap);
  } catch (const StartupError& error) {
    failure = {error.code(), error.what()};
  } catch (const std::exception& error) {
    failure = {ErrorCode::kInternal, error.what()};
  }
  const bool speaks_for_others = is_external(start.config);
  if (control.abort.raised() && !speaks_for_others) {  // by another rank, which says why
    return kRankAborted;
  }
  if (rank == nullptr) {
    send(answers, FromRank::kStartFailed, failure);
    if (speaks_for_others) {
      control.abort.raise(place.rank, AbortPhase::kLoad);
    }
    return kRankFailed;
  }
  Executor& executor = rank->executor();
  executor.enter_thread();
  send(answers,
       FromRank::kReady,
       RankReady{executor.model_facts(), executor.max_concurrent_batches(), rank->device()});
  const RankLinks links{.abort = control.abort,
                        .state = state,
                        .commands = commands,
                        .answers = answers,
                        .sends_digests = speaks_for_others && compares_results(place)};
  return run(memory, links, place, *rank);
}

}  // namespace warprow
