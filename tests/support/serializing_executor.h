// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "executor/executor_wrapper.h"
#include "wire/serialize.h"

#include <cstdint>
#include <vector>

namespace warprow::test {

// Serialises and deserialises the messages of every step, as an executor with workers in other processes does. A field
// that the wire format omits is therefore lost here too.
//
// Owns: the wrapped executor.
// Thread: the engine's.
class SerializingExecutor : public ExecutorWrapper {
 public:
  using ExecutorWrapper::ExecutorWrapper;

  void execute_model(const SchedulerOutput& step) override {
    inner().execute_model(through_bytes(step, step_));
  }
  void sample_tokens(const GrammarOutput* grammar) override {
    inner().sample_tokens(grammar == nullptr ? nullptr : &through_bytes(*grammar, grammar_));
  }
  void take_output(ModelRunnerOutput& output) override {
    inner().take_output(taken_);
    through_bytes(taken_, output);
  }

 private:
  template <typename Message>
  const Message& through_bytes(const Message& from, Message& to) {
    serialize(from, bytes_);
    const Result<void> read = deserialize(bytes_, to);
    WR_CHECK(read.has_value(), "{}", read.error().message);
    WR_CHECK(to == from, "a message changed on its way");
    return to;
  }

  SchedulerOutput step_;
  GrammarOutput grammar_;
  ModelRunnerOutput taken_;
  std::vector<uint8_t> bytes_;
};

}  // namespace warprow::test
