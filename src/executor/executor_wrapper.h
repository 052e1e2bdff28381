// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor/executor.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warprow {

// Passes every call to another executor. A subclass overrides what it watches or changes.
//
// Owns: the other executor. Thread: as Executor.
class ExecutorWrapper : public Executor {
 public:
  explicit ExecutorWrapper(std::unique_ptr<Executor> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] const ModelFacts& model_facts() const override { return inner_->model_facts(); }
  [[nodiscard]] int32_t max_concurrent_batches() const override {
    return inner_->max_concurrent_batches();
  }
  void enter_thread() override { inner_->enter_thread(); }
  void execute_model(const SchedulerOutput& step) override { inner_->execute_model(step); }
  void sample_tokens(const GrammarOutput* grammar) override { inner_->sample_tokens(grammar); }
  [[nodiscard]] bool forward_done() const override { return inner_->forward_done(); }
  [[nodiscard]] int32_t num_outstanding() const override { return inner_->num_outstanding(); }
  [[nodiscard]] bool output_ready() const override { return inner_->output_ready(); }
  void take_output(ModelRunnerOutput& output) override { inner_->take_output(output); }
  bool set_wake_up(WakeUp* wake_up) override { return inner_->set_wake_up(wake_up); }
  std::optional<DataParallelShape> idle_step() override { return inner_->idle_step(); }
  RankReplies collective_rpc(std::string_view operation,
                             const std::string& argument,
                             RankSet ranks) override {
    return inner_->collective_rpc(operation, argument, ranks);
  }
  [[nodiscard]] ExecutorStats stats() const override { return inner_->stats(); }
  [[nodiscard]] std::vector<RankStatus> ranks() const override { return inner_->ranks(); }

 protected:
  [[nodiscard]] Executor& inner() { return *inner_; }
  [[nodiscard]] const Executor& inner() const { return *inner_; }

 private:
  std::unique_ptr<Executor> inner_;
};

}  // namespace warprow
