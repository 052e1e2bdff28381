// SPDX-License-Identifier: Apache-2.0
#include "base/alloc_counter.h"
#include "base/error.h"
#include "comm/rank_place.h"
#include "comm/shared_memory.h"
#include "executor/external/launch.h"
#include "executor/make_executor.h"
#include "executor/mp/answer_reader.h"
#include "executor/mp/rank_memory.h"
#include "executor/mp/rank_messages.h"
#include "executor/mp/rank_process.h"
#include "executor/mp/rank_watch.h"
#include "wire/serialize.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// A pipe of which the parent holds one end and every rank the other, so that ranks see the end of the parent.
class LifeLine {
 public:
  LifeLine() {
    if (::pipe2(ends_, O_CLOEXEC) != 0) {
      throw StartupError(ErrorCode::kInternal,
                         fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    }
  }
  ~LifeLine() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  LifeLine(const LifeLine&) = delete;
  LifeLine& operator=(const LifeLine&) = delete;
  [[nodiscard]] int rank_end() const { return ends_[0]; }

 private:
  int ends_[2];
};

// How long a rank may need for a step. A step on a CPU can take a minute; one that takes longer than this never ends.
std::chrono::seconds step_limit(const EngineConfig& config, const std::string& device) {
  constexpr std::chrono::seconds kOnCpu{600};
  constexpr std::chrono::seconds kOnGpu{60};
  if (config.stall_timeout > 0) {
    return std::chrono::seconds(config.stall_timeout);
  }
  return device == "cuda" ? kOnGpu : kOnCpu;
}

// The program of the ranks. Throws in a process that was itself started as a rank, but whose program does not call
// rank_main: it would start ranks without end.
std::string worker_binary(const EngineConfig& config) {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) {
    words.push_back(word);
  }
  if (!words.empty() && RankArguments::parse({words.begin() + 1, words.end()})) {
    throw StartupError(
        ErrorCode::kInvalidArgument,
        fmt::format("worker-binary: {} does not run ranks; it must call rank_main", words.front()));
  }
  return config.worker_binary.empty() ? "/proc/self/exe" : config.worker_binary;
}

// One process for each rank. With a launcher, only rank 0's process: it carries messages to the other ranks. A step is one
// message to all ranks through shared memory, and its output is one message from the output rank. A step with grammar rows
// takes a second message, with the masks.
//
// Owns: the processes, the shared memory, a thread that reads answers and one that watches the processes.
class MpExecutor final : public Executor {
 public:
  explicit MpExecutor(const EngineConfig& config)
      : place_(rank_place(0, config.tensor_parallel_size, config.pipeline_parallel_size)),
        shared_(SharedMemory::create(RankMemory::bytes(place_.tensor.size, place_.pipeline.size))),
        memory_(shared_.data(), place_.tensor.size, place_.pipeline.size),
        commands_(memory_.commands, memory_.control->abort),
        answers_(memory_, place_.output_rank()),
        watch_(*memory_.control,
               start_processes(config),
               place_.world_size(),
               [this](const std::string& why) { answers_.fail(why); }) {
    try {
      encode(RankStart{config}, bytes_);
      send(ToRank::kStart);
      RankReady ready = answers_.wait_until_ready();
      facts_ = std::move(ready.facts);
      max_concurrent_batches_ = ready.max_concurrent_batches;
      watch_.limit_steps(step_limit(config, ready.device));
    } catch (...) {
      watch_.expect_end();
      memory_.control->abort.raise(0, AbortPhase::kLoad);
      throw;
    }
  }

  ~MpExecutor() override {
    watch_.expect_end();
    commands_.write(static_cast<uint32_t>(ToRank::kStop), {});
  }

  const ModelFacts& model_facts() const override { return facts_; }
  int32_t max_concurrent_batches() const override { return max_concurrent_batches_; }

  void execute_model(const SchedulerOutput& step) override {
    const CountAllocations count;
    sample_apart_ = !step.grammar_rows.empty();
    step_ = step.step;
    serialize(step, bytes_);
    send(sample_apart_ ? ToRank::kStep : ToRank::kStepAndSample);
  }

  void sample_tokens(const GrammarOutput* grammar) override {
    const CountAllocations count;
    if (sample_apart_) {
      serialize(grammar != nullptr ? *grammar : no_masks_, bytes_);
      send(ToRank::kSample);
    }
    ++num_outstanding_;
    watch_.count_submitted(++num_submitted_);
  }

  bool forward_done() const override {
    return std::ranges::all_of(
        std::span(memory_.control->ranks).first(num_ranks()),
        [this](const RankState& state) { return state.forward_done.load() == step_; });
  }
  int32_t num_outstanding() const override { return num_outstanding_; }
  bool output_ready() const override { return answers_.output_ready(); }
  void take_output(ModelRunnerOutput& output) override {
    const CountAllocations count;
    answers_.take_output(output);
    --num_outstanding_;
  }
  bool set_wake_up(WakeUp* wake_up) override {
    answers_.set_wake_up(wake_up);
    return true;
  }
  // There are no other engines. An engine that is idle thus notices a failure.
  std::optional<DataParallelShape> idle_step() override {
    answers_.throw_if_failed();
    return std::nullopt;
  }

  RankReplies collective_rpc(std::string_view operation,
                             const std::string& argument,
                             RankSet ranks) override {
    const RankCall call{next_call_++, ranks.one.value_or(-1), std::string(operation), argument};
    RankReplies replies = answers_.expect_replies(call.id, call.rank);
    encode(call, bytes_);
    send(ToRank::kCall);
    return replies;
  }

  ExecutorStats stats() const override { return answers_.stats(); }
  std::vector<RankStatus> ranks() const override {
    std::vector<RankStatus> list;
    for (int32_t rank = 0; rank < place_.world_size(); ++rank) {
      const RankState& state = memory_.control->ranks[rank];
      list.push_back({rank,
                      std::string(rank_phase_name(state.phase.load())),
                      state.step.load(),
                      state.retired.load()});
    }
    return list;
  }

 private:
  [[nodiscard]] size_t num_ranks() const { return static_cast<size_t>(place_.world_size()); }

  [[nodiscard]] std::vector<RankProcess> start_processes(const EngineConfig& config) const {
    const std::string binary = worker_binary(config);
    std::vector<RankProcess> processes;
    const int32_t mine = is_external(config) ? 1 : place_.world_size();
    for (int32_t rank = 0; rank < mine; ++rank) {
      const RankArguments arguments{rank, place_.tensor.size, place_.pipeline.size};
      processes.emplace_back(binary, arguments, shared_.fd(), life_line_.rank_end());
    }
    return processes;
  }

  // Sends bytes_ to all ranks. Throws std::runtime_error after a failure.
  void send(ToRank kind) {
    if (!commands_.write(static_cast<uint32_t>(kind), bytes_)) {
      answers_.throw_failure();
    }
  }

  RankPlace place_;
  SharedMemory shared_;
  RankMemory memory_;
  LifeLine life_line_;
  RingWriter commands_;
  AnswerReader answers_;
  RankWatch watch_;
  ModelFacts facts_;
  int32_t max_concurrent_batches_ = 1;

  int64_t step_ = 0;           // the last one submitted
  bool sample_apart_ = false;  // its sampling takes a message of its own
  int32_t num_outstanding_ = 0;
  int64_t num_submitted_ = 0;
  uint64_t next_call_ = 0;
  GrammarOutput no_masks_;
  std::vector<uint8_t> bytes_;  // of the message being sent
};

}  // namespace

std::unique_ptr<Executor> make_mp_executor(const EngineConfig& config) {
  if (is_external(config)) {
    const Launch launch = value_or_throw(read_launch());
    value_or_throw(
        check_launch(launch, config.tensor_parallel_size, config.pipeline_parallel_size));
    if (launch.rank != 0) {
      throw StartupError(ErrorCode::kInvalidArgument,
                         "--distributed-executor-backend: this command does not run with "
                         "external_launcher");
    }
  }
  return std::make_unique<MpExecutor>(config);
}

}  // namespace warprow
