// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/shared_slots.h"
#include "executor/executor.h"
#include "tests/support/rank_group.h"
#include "worker/rank.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace warprow::test {

// The ranks of tensor-parallel groups and pipeline stages as threads of this process. Every rank runs every step, and its
// operations wait for those of the others. Each call returns when all ranks have done it; the output rank's answers are
// returned.
//
// Owns: threads, ranks, the memory that they share.
// Thread: one.
class RankThreads final : public Executor {
 public:
  // Makes a rank, on its thread.
  using MakeRank =
      std::function<std::unique_ptr<Executor>(const RankPlace& place, const RankComms& comms)>;

  // Throws what the first rank that failed threw. Most messages between stages are larger than a slot.
  RankThreads(int32_t tensor_size, int32_t pipeline_size, const MakeRank& make)
      : first_(rank_place(0, tensor_size, pipeline_size)), all_(first_.world_size()) {
    for (int32_t stage = 0; stage < pipeline_size; ++stage) {
      tensor_groups_.push_back(std::make_unique<ThreadGroup>(tensor_size));
    }
    SlotSizes slots = stage_slots(pipeline_size);
    slots.pair_bytes = SharedSlots::kAlignment;
    for (int32_t rank = 0; rank < tensor_size; ++rank) {
      stage_groups_.push_back(std::make_unique<ThreadGroup>(pipeline_size, slots));
    }
    for (int32_t rank = 0; rank < first_.world_size(); ++rank) {
      Rank& mine = *ranks_.emplace_back(std::make_unique<Rank>());
      mine.thread = std::thread([this, &mine, rank] { serve(mine, rank); });
    }
    try {
      on_all([&](int32_t rank, Rank& mine) {
        const RankPlace place = place_of(rank);
        mine.executor = make(place,
                             {place.tensor.size > 1 ? &tensor_comm(place) : nullptr,
                              &all_.host(rank),
                              place.pipeline.size > 1 ? &stage_comm(place) : nullptr});
      });
    } catch (...) {
      end();
      throw;
    }
  }
  ~RankThreads() override { end(); }

  const ModelFacts& model_facts() const override { return output_rank().model_facts(); }
  int32_t max_concurrent_batches() const override { return output_rank().max_concurrent_batches(); }
  void execute_model(const SchedulerOutput& step) override {
    on_all([&](int32_t, Rank& mine) { mine.executor->execute_model(step); });
  }
  void sample_tokens(const GrammarOutput* grammar) override {
    on_all([&](int32_t, Rank& mine) { mine.executor->sample_tokens(grammar); });
  }
  bool forward_done() const override {
    return std::ranges::all_of(ranks_,
                               [](const auto& mine) { return mine->executor->forward_done(); });
  }
  int32_t num_outstanding() const override { return output_rank().num_outstanding(); }
  bool output_ready() const override { return output_rank().output_ready(); }
  void take_output(ModelRunnerOutput& output) override {
    on_all([&](int32_t rank, Rank& mine) {
      mine.executor->take_output(rank == first_.output_rank() ? output : mine.unused_output);
    });
  }
  RankReplies collective_rpc(std::string_view operation,
                             const std::string& argument,
                             RankSet ranks) override {
    std::vector<std::string> replies(ranks.one ? 1 : ranks_.size());
    on_all([&](int32_t rank, Rank& mine) {
      if (ranks.one.value_or(rank) == rank) {
        const size_t at = ranks.one ? 0 : static_cast<size_t>(rank);
        replies[at] = mine.executor->collective_rpc(operation, argument, RankSet::all()).get()[0];
      }
    });
    std::promise<std::vector<std::string>> promise;
    promise.set_value(std::move(replies));
    return promise.get_future();
  }
  ExecutorStats stats() const override { return output_rank().stats(); }

  // Operations that a rank has enqueued so far: with the other ranks of its stage, and with the other stages.
  [[nodiscard]] const CommCounts& counts(int32_t rank) const {
    return tensor_comm(place_of(rank)).counts();
  }
  [[nodiscard]] const CommCounts& stage_counts(int32_t rank) const {
    return stage_comm(place_of(rank)).counts();
  }

 private:
  struct Rank {
    std::unique_ptr<Executor> executor;
    ModelRunnerOutput unused_output;
    std::thread thread;
    // Guarded by the mutex. Empty: nothing to do, or the task is done.
    std::function<void()> task;
    bool stop = false;
    std::exception_ptr failure;
    std::mutex mutex;
    std::condition_variable changed;
  };

  [[nodiscard]] RankPlace place_of(int32_t rank) const {
    return rank_place(rank, first_.tensor.size, first_.pipeline.size);
  }
  [[nodiscard]] CountingCommunicator& tensor_comm(const RankPlace& place) const {
    return tensor_groups_[static_cast<size_t>(place.pipeline.rank)]->comm(place.tensor.rank);
  }
  [[nodiscard]] CountingCommunicator& stage_comm(const RankPlace& place) const {
    return stage_groups_[static_cast<size_t>(place.tensor.rank)]->comm(place.pipeline.rank);
  }
  [[nodiscard]] const Executor& output_rank() const {
    return *ranks_[static_cast<size_t>(first_.output_rank())]->executor;
  }

  // Ends the waits of all ranks, since one failed.
  void abort(int32_t rank) {
    all_.abort(rank);
    for (auto* groups : {&tensor_groups_, &stage_groups_}) {
      for (const auto& group : *groups) {
        group->abort(rank);
      }
    }
  }

  void serve(Rank& mine, int32_t rank) {
    std::unique_lock lock(mine.mutex);
    while (true) {
      mine.changed.wait(lock, [&] { return mine.task || mine.stop; });
      if (!mine.task) {
        mine.executor.reset();
        return;
      }
      lock.unlock();
      try {
        mine.task();
      } catch (...) {
        mine.failure = std::current_exception();
        abort(rank);
      }
      lock.lock();
      mine.task = nullptr;
      mine.changed.notify_all();
    }
  }

  void on_all(const std::function<void(int32_t rank, Rank& mine)>& task) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Rank& mine = *ranks_[i];
      const std::scoped_lock lock(mine.mutex);
      mine.task = [&task, &mine, i] { task(static_cast<int32_t>(i), mine); };
      mine.changed.notify_all();
    }
    std::exception_ptr failure;
    for (const auto& mine : ranks_) {
      std::unique_lock lock(mine->mutex);
      mine->changed.wait(lock, [&] { return !mine->task; });
      if (mine->failure && !failure) {
        failure = mine->failure;
      }
    }
    if (failure) {
      std::rethrow_exception(failure);
    }
  }

  void end() {
    for (const auto& mine : ranks_) {
      const std::scoped_lock lock(mine->mutex);
      mine->stop = true;
      mine->changed.notify_all();
    }
    for (const auto& mine : ranks_) {
      mine->thread.join();
    }
  }

  RankPlace first_;
  ThreadGroup all_;
  std::vector<std::unique_ptr<ThreadGroup>> tensor_groups_;  // by stage
  std::vector<std::unique_ptr<ThreadGroup>> stage_groups_;   // by place in a stage
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace warprow::test
