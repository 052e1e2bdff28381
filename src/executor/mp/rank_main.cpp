// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_main.h"

#include "base/error.h"
#include "base/log.h"
#include "comm/cpu/shared_memory_communicator.h"
#include "comm/rank_place.h"
#include "comm/shared_host_group.h"
#include "comm/shared_memory.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/host_limits.h"
#include "device/cuda_device.h"
#include "executor/make_executor.h"
#include "executor/mp/heartbeat.h"
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
#include <sched.h>
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

// Pinned ranks divide the cores of the host.
void keep_own_cores(const RankPlace& place) {
  const std::vector<int32_t> cores = cpu::affinity_cores();
  const size_t each = cores.size() / static_cast<size_t>(place.world_size());
  cpu_set_t mine;
  CPU_ZERO(&mine);
  for (size_t i = 0; i < each; ++i) {
    CPU_SET(static_cast<size_t>(cores[static_cast<size_t>(place.rank) * each + i]), &mine);
  }
  if (each > 0) {
    ::sched_setaffinity(0, sizeof mine, &mine);
  }
}

// A rank and what it shares with the others.
//
// Owns: all of it.
class LocalRank {
 public:
  // Loads the model, together with the other ranks. Throws StartupError.
  LocalRank(const EngineConfig& config,
            const RankPlace& place,
            RankMemory& memory,
            const WrapRank& wrap)
      : tensor_(make_shared_memory_communicator(
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
    const int32_t ordinal = config.device_ordinal + place.rank;
    const MachineFacts machine = this_machine(config.device, ordinal);
    ModelPlan plan = value_or_throw(plan_model(config, machine, {}, place));
    device_ = plan.config.device;
    if (device_ == "cuda" && place.world_size() > 1) {
      throw StartupError(ErrorCode::kUnsupported,
                         fmt::format("--{}-parallel-size: {} ranks on GPUs are not supported "
                                     "yet; use 1, or --device cpu",
                                     place.pipeline.size > 1 ? "pipeline" : "tensor",
                                     place.world_size()));
    }
    const RankComms comms{place.tensor.size > 1 ? tensor_.get() : nullptr,
                          place.world_size() > 1 ? all_.get() : nullptr,
                          pipeline_.get()};
    std::unique_ptr<Device> device;
    if (device_ == "cuda") {
      device = cuda::make_cuda_device(ordinal);
    } else {
      if (plan.config.pin_threads) {
        keep_own_cores(place);
      }
      device = cpu::make_cpu_device(
          {.num_threads = plan.config.threads, .pin_threads = plan.config.pin_threads});
    }
    executor_ = make_uniproc_executor(std::move(plan), std::move(device), comms);
    if (wrap) {
      executor_ = wrap(std::move(executor_));
    }
  }

  [[nodiscard]] Executor& executor() { return *executor_; }
  [[nodiscard]] const std::string& device() const { return device_; }

 private:
  std::unique_ptr<Communicator> tensor_;
  std::unique_ptr<Communicator> pipeline_;  // null in one stage
  std::unique_ptr<HostGroup> all_;
  std::string device_;
  std::unique_ptr<Executor> executor_;
};

int run(const RankMemory& memory, const RankLinks& links, const RankPlace& place, LocalRank& rank) {
  try {
    RankLoop loop(links, place.rank, place.rank == place.output_rank(), rank.executor());
    return loop.run() ? kRankStopped : kRankAborted;
  } catch (const std::exception& error) {
    // Before the rank is taken apart: that waits for its device, which may wait for the other ranks.
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
  std::unique_ptr<LocalRank> rank;
  RankFailure failure;
  try {
    rank = std::make_unique<LocalRank>(start.config, place, memory, wrap);
  } catch (const StartupError& error) {
    failure = {error.code(), error.what()};
  } catch (const std::exception& error) {
    failure = {ErrorCode::kInternal, error.what()};
  }
  if (control.abort.raised()) {  // by another rank, which says why
    return kRankAborted;
  }
  if (rank == nullptr) {
    send(answers, FromRank::kStartFailed, failure);
    return kRankFailed;
  }
  Executor& executor = rank->executor();
  executor.enter_thread();
  send(answers,
       FromRank::kReady,
       RankReady{executor.model_facts(), executor.max_concurrent_batches(), rank->device()});
  return run(memory, {control.abort, state, commands, answers}, place, *rank);
}

}  // namespace warprow
