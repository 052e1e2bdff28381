// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/device.h"
#include "models/decoder.h"
#include "runner/kv_cache.h"
#include "runner/model_runner.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"
#include "worker/model_plan.h"
#include "worker/sleep.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace warprow {

// One rank: owns a device and everything on it. Loads the model by its plan, allocates the KV
// cache, warms up, then runs steps.
//
// Owns: device, stream, arenas, model, cache, runner.
// Thread: one, the executor's.
// Invariant: after construction the arenas are exactly full: what was planned is what is used; no
// step runs while weights or cache sleep.
class Worker {
 public:
  // Loads weights and runs one empty step. Throws StartupError.
  Worker(ModelPlan plan, std::unique_ptr<Device> device);
  ~Worker();

  [[nodiscard]] const ModelPlan& plan() const { return plan_; }

  void execute_model(const SchedulerOutput& step) {
    WR_CHECK(sleep_mode_->awake(), "a step while the worker sleeps");
    runner_->execute_model(step);
  }
  void sample_tokens(const GrammarOutput* grammar) { runner_->sample_tokens(grammar); }
  [[nodiscard]] bool forward_done() const { return runner_->forward_done(); }
  [[nodiscard]] int32_t num_outstanding() const { return runner_->num_outstanding(); }
  [[nodiscard]] bool output_ready() const { return runner_->output_ready(); }
  void take_output(ModelRunnerOutput& output) { runner_->take_output(output); }

  // Named operations for collective_rpc: check_health, memory_plan (JSON; argument "text": as
  // `warprow plan` shows it), state_checksum (rows and KV cache; waits for the device), time_steps
  // (argument: how many of the next steps), step_times (waits; JSON [[begin, end], ...] in
  // microseconds of those steps on the device, empty on a CPU), sleep (argument: the level) and
  // wake_up (argument: tags), see SleepMode. Nothing for an unknown name.
  [[nodiscard]] std::optional<std::string> call(const std::string& operation,
                                                const std::string& argument);

  [[nodiscard]] const GraphStats& graph_stats() const { return runner_->graph_stats(); }
  [[nodiscard]] int64_t output_wait_ns() const { return runner_->output_wait_ns(); }
  [[nodiscard]] int64_t num_driver_calls() const { return stream_->num_driver_calls(); }
  [[nodiscard]] int64_t workspace_high_water() const {
    return static_cast<int64_t>(workspace_.high_water());
  }

 private:
  void warm_up();
  void measure_memory();
  void load_weights_again();
  [[nodiscard]] std::string state_checksum();

  ModelPlan plan_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena weights_;
  Arena state_;
  Arena workspace_;
  std::unique_ptr<Decoder> model_;
  std::unique_ptr<KvCache> kv_cache_;
  std::unique_ptr<SleepMode> sleep_mode_;
  std::unique_ptr<ModelRunner> runner_;
};

}  // namespace warprow
