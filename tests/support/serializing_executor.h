// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "executor/executor.h"
#include "wire/serialize.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace warprow::test {

// Sends the messages of every step through bytes, as an executor with workers in other processes
// does: what a field does not carry is lost here too.
//
// Owns: the executor behind it.
// Thread: the engine's.
class SerializingExecutor : public Executor {
 public:
  explicit SerializingExecutor(std::unique_ptr<Executor> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] const ModelFacts& model_facts() const override { return inner_->model_facts(); }
  [[nodiscard]] int32_t max_concurrent_batches() const override {
    return inner_->max_concurrent_batches();
  }
  void execute_model(const SchedulerOutput& step) override {
    inner_->execute_model(through_bytes(step, step_));
  }
  void sample_tokens(const GrammarOutput* grammar) override {
    inner_->sample_tokens(grammar == nullptr ? nullptr : &through_bytes(*grammar, grammar_));
  }
  [[nodiscard]] bool forward_done() const override { return inner_->forward_done(); }
  [[nodiscard]] int32_t num_outstanding() const override { return inner_->num_outstanding(); }
  [[nodiscard]] bool output_ready() const override { return inner_->output_ready(); }
  void take_output(ModelRunnerOutput& output) override {
    inner_->take_output(taken_);
    through_bytes(taken_, output);
  }
  std::vector<std::string> collective_rpc(const std::string& operation,
                                          const std::string& argument) override {
    return inner_->collective_rpc(operation, argument);
  }
  [[nodiscard]] ExecutorStats stats() const override { return inner_->stats(); }

 private:
  template <typename Message>
  const Message& through_bytes(const Message& from, Message& to) {
    serialize(from, bytes_);
    const Result<void> read = deserialize(bytes_, to);
    WR_CHECK(read.has_value(), "{}", read.error().message);
    WR_CHECK(to == from, "a message changed on its way");
    return to;
  }

  std::unique_ptr<Executor> inner_;
  SchedulerOutput step_;
  GrammarOutput grammar_;
  ModelRunnerOutput taken_;
  std::vector<uint8_t> bytes_;
};

}  // namespace warprow::test
