// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kv/kv_spec.h"
#include "runner/input_batch.h"
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
  virtual void after_sample(Stream& /*stream*/, const InputBatch& /*batch*/) {}
};

class StepTimes;

struct FeatureSetup {
  std::vector<KvGroupSpec> groups;
  const InputBuffers* inputs = nullptr;
  int32_t max_num_seqs = 0;
  bool debug_checks = false;
  StepTimes* step_times = nullptr;
};

// The features that the setup asks for, in execution order.
std::vector<std::unique_ptr<RunnerFeature>> make_features(const FeatureSetup& setup);

}  // namespace warprow
