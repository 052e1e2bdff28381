// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "device/stream.h"
#include "device/view.h"
#include "kv/kv_spec.h"
#include "runner/input_batch.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace warprow {

// A feature around the forward, in a file of its own. The runner calls the hooks of every feature
// in the order of registry.cpp and knows none by name. All hooks default to nothing.
class RunnerFeature {
 public:
  virtual ~RunnerFeature() = default;
  // A row is given to a request, or taken back; before the step that says so is uploaded.
  virtual void on_row_added(const NewRow& /*row*/) {}
  virtual void on_row_removed(RowId /*row*/) {}
  // The whole step, after its rows were updated.
  virtual void stage(const SchedulerOutput& /*step*/) {}
  // Around the forward, outside graphs: what these enqueue is enqueued anew in every step. Inputs
  // are built by the time of after_forward.
  virtual void before_forward(Stream& /*stream*/, const InputBatch& /*batch*/) {}
  virtual void after_forward(Stream& /*stream*/, const InputBatch& /*batch*/) {}
  // Sampling. On the host, before it is submitted: `entry` is the step's entry of rings that are as
  // long as there are steps in flight.
  virtual void prepare_sample(const InputBatch& /*batch*/,
                              const GrammarOutput* /*grammar*/,
                              int32_t /*entry*/) {}
  // The head of the sample graph: what this enqueues may differ only between steps for which
  // sample_key differs, and it sees padded rows too.
  virtual void before_sample(Stream& /*stream*/, View<float, 2> /*logits*/) {}
  [[nodiscard]] virtual uint32_t sample_key() const { return 0; }  // 0 or 1
  // The step's logits are done with, its hidden states are still there.
  virtual void after_sample(Stream& /*stream*/, const InputBatch& /*batch*/) {}
  // The step's output is being taken: once for each step, in their order.
  virtual void on_output(ModelRunnerOutput& /*output*/) {}
};

class ForwardMark;
class LogitsHead;
class RequestRows;
class Sampler;
class StepTimes;

struct FeatureSetup {
  Device* device = nullptr;
  std::vector<KvGroupSpec> groups;
  const InputBuffers* inputs = nullptr;
  const RequestRows* rows = nullptr;
  LogitsHead* head = nullptr;
  Sampler* sampler = nullptr;
  int32_t max_num_seqs = 0;
  int32_t max_num_toks = 0;
  int32_t vocab_size = 0;
  const int32_t* output_entry = nullptr;  // dev i32 [1]  the step's entry of rings
  int32_t num_entries = 0;                // of such rings
  ForwardMark* forward_mark = nullptr;
  int64_t hidden_bytes = 0;  // of a token's hidden state; 0: no request may ask for any
  bool debug_checks = false;
  StepTimes* step_times = nullptr;
};

// The features that the setup asks for, in execution order.
std::vector<std::unique_ptr<RunnerFeature>> make_features(const FeatureSetup& setup);

}  // namespace warprow
