// SPDX-License-Identifier: Apache-2.0
#include "executor/external/external_rank.h"

#include "base/error.h"
#include "comm/host_group.h"
#include "comm/rank_place.h"
#include "comm/shared_memory.h"
#include "executor/external/rank_meeting.h"
#include "executor/external/rank_uplink.h"
#include "executor/mp/local_rank.h"
#include "executor/mp/rank_loop.h"
#include "executor/mp/rank_memory.h"
#include "executor/mp/rank_messages.h"
#include "worker/model_plan.h"

#include <csignal>
#include <exception>
#include <memory>
#include <sys/prctl.h>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// One rank: the executor, its messages, the model.
//
// Owns: all of it.
class ExternalRank {
 public:
  ExternalRank(const EngineConfig& config, const Launch& launch)
      : config_(config),
        place_(rank_place(launch.rank, config.tensor_parallel_size, config.pipeline_parallel_size)),
        shared_(SharedMemory::create(RankMemory::bytes(1, 1))),
        memory_(shared_.data(), 1, 1),
        meeting_(config, launch, place_, memory_.control->abort),
        uplink_(memory_,
                place_.rank,
                place_.world_size(),
                std::move(meeting_.take_mesh().sockets.front())),
        commands_(memory_.commands, 0, memory_.control->abort),
        answers_(memory_.answers.front(), memory_.control->abort) {}

  void run(const WrapRank& wrap) {
    std::unique_ptr<LocalRank> rank = load(wrap);
    try {
      rank->executor().enter_thread();
      send(FromRank::kReady,
           RankReady{rank->executor().model_facts(),
                     rank->executor().max_concurrent_batches(),
                     rank->device()});
      const RankLinks links{.abort = memory_.control->abort,
                            .state = state(),
                            .commands = commands_,
                            .answers = answers_,
                            .tells_forward_done = true,
                            .sends_digests = compares_results(place_)};
      RankLoop loop(links, place_.rank, place_.rank == place_.output_rank(), rank->executor());
      if (loop.run()) {
        return;
      }
    } catch (const std::exception& error) {
      // Report it before the rank is destroyed: that waits for the device, which may wait for the other ranks.
      give_up(AbortPhase::kStep, error.what());
      throw StartupError(ErrorCode::kInternal,
                         fmt::format("rank {} of {} failed in a step: {}",
                                     place_.rank,
                                     place_.world_size(),
                                     error.what()));
    }
    throw_if_aborted(place_.rank, memory_.control->abort);
  }

 private:
  [[nodiscard]] RankState& state() { return memory_.control->ranks[place_.rank]; }

  std::unique_ptr<LocalRank> load(const WrapRank& wrap) {
    state().phase.store(RankPhase::kLoading);
    try {
      return std::make_unique<LocalRank>(config_, place_, meeting_.share(), meeting_.comms(), wrap);
    } catch (const StartupError& error) {
      refuse_to_start({error.code(), error.what()});
    } catch (const std::exception& error) {
      refuse_to_start({ErrorCode::kInternal, error.what()});
    }
  }

  // The executor gets the reason before the abort.
  [[noreturn]] void refuse_to_start(const RankFailure& failure) {
    if (!memory_.control->abort.raised()) {
      send(FromRank::kStartFailed, failure);
      give_up(AbortPhase::kLoad, failure.message);
    }
    throw StartupError(failure.code, failure.message);
  }

  void give_up(AbortPhase phase, const std::string& why) {
    state().fail(why);
    uplink_.flush();
    memory_.control->abort.raise(place_.rank, phase);
  }

  template <typename Message>
  void send(FromRank kind, const Message& message) {
    std::vector<uint8_t> bytes;
    encode(message, bytes);
    answers_.write(static_cast<uint32_t>(kind), bytes);
  }

  const EngineConfig& config_;
  RankPlace place_;
  SharedMemory shared_;
  RankMemory memory_;
  RankMeeting meeting_;
  RankUplink uplink_;
  RingReader commands_;
  RingWriter answers_;
};

}  // namespace

void run_external_rank(const EngineConfig& config, const Launch& launch, const WrapRank& wrap) {
  ::prctl(PR_SET_NAME, fmt::format("wr-rank-{}", launch.rank).c_str());
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns; RankLoop sleeps for microseconds
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  value_or_throw(check_parallel_sizes(config));
  value_or_throw(check_launch(launch, config.tensor_parallel_size, config.pipeline_parallel_size));
  ExternalRank(config, launch).run(wrap);
}

}  // namespace warprow
