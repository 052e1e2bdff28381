// SPDX-License-Identifier: Apache-2.0
#pragma once

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

// The ranks of a tensor-parallel group as threads of this process. Every rank runs every step, and its operations wait
// for those of the others. Each call returns when all ranks have done it; the first rank's answers are returned.
//
// Owns: threads, ranks, the memory that they share.
// Thread: one.
class RankThreads final : public Executor {
 public:
  // Makes a rank, on its thread.
  using MakeRank = std::function<std::unique_ptr<Executor>(int32_t rank, const RankComms& comms)>;

  // Throws what the first rank that failed threw.
  RankThreads(int32_t num_ranks, const MakeRank& make) : group_(num_ranks) {
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      Rank& mine = *ranks_.emplace_back(std::make_unique<Rank>());
      mine.thread = std::thread([this, &mine, rank] { serve(mine, rank); });
    }
    try {
      on_all([&](int32_t rank, Rank& mine) {
        mine.executor = make(rank, {&group_.comm(rank), &group_.host(rank)});
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
      mine.executor->take_output(rank == 0 ? output : mine.unused_output);
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

  // Operations that a rank has enqueued so far.
  [[nodiscard]] const CommCounts& counts(int32_t rank) const { return group_.comm(rank).counts(); }

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

  [[nodiscard]] const Executor& output_rank() const { return *ranks_.front()->executor; }

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
        group_.abort(rank);
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

  ThreadGroup group_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace warprow::test
