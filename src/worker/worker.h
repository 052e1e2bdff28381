// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/device.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"
#include "worker/model_plan.h"
#include "worker/rank.h"
#include "worker/rank_terms.h"
#include "worker/sleep.h"
#include "worker/warm_up.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// One rank: owns a device and everything on it. It is given the device and the plan. It builds all but the KV
// cache, measures what that took, agrees with the other ranks on the cache's size, builds the cache, warms up, and
// runs steps.
//
// Owns: device, stream, rank.
// Thread: one at a time, the executor's; a thread other than the constructing one calls use_here first.
// Invariant: after construction the arenas are exactly full: use equals the plan; no step runs while weights or
// cache sleep.
class Worker {
 public:
  // Loads weights and warms up, together with the other ranks if there are any. Throws StartupError.
  Worker(ModelPlan plan, std::unique_ptr<Device> device, const RankComms& comms = {});
  ~Worker();

  // With the final KV cache.
  [[nodiscard]] const ModelPlan& plan() const { return plan_; }

  // As Device::use_here.
  void use_here() const { device_->use_here(); }

  void execute_model(const SchedulerOutput& step) {
    WR_CHECK(sleep_mode_->awake(), "a step while the worker sleeps");
    rank_.runner->execute_model(step);
  }
  void sample_tokens(const GrammarOutput* grammar) { rank_.runner->sample_tokens(grammar); }
  [[nodiscard]] bool forward_done() const { return rank_.runner->forward_done(); }
  [[nodiscard]] int32_t num_outstanding() const { return rank_.runner->num_outstanding(); }
  [[nodiscard]] bool output_ready() const { return rank_.runner->output_ready(); }
  void take_output(ModelRunnerOutput& output) { rank_.runner->take_output(output); }

  // Named operations: those of the runner's features and these: check_health, memory_plan (JSON; argument "text":
  // as `warprow plan` prints it), state_checksum (rows, parameters, tables, tokens and KV cache; waits for the
  // device), sleep (argument: the level) and wake_up (argument: tags), see SleepMode; check_weights and load_weights
  // (argument: a model as in the settings), see executor/rank_operations.h. nullopt for an unknown name.
  [[nodiscard]] std::optional<std::string> call(const std::string& operation,
                                                const std::string& argument) {
    return rank_.runner->operations().call(operation, argument);
  }

  [[nodiscard]] const GraphStats& graph_stats() const { return rank_.runner->graph_stats(); }
  [[nodiscard]] int64_t output_wait_ns() const { return rank_.runner->output_wait_ns(); }
  [[nodiscard]] int64_t num_driver_calls() const { return stream_->num_driver_calls(); }
  [[nodiscard]] int64_t workspace_high_water() const {
    return static_cast<int64_t>(rank_.workspace.high_water());
  }

 private:
  [[nodiscard]] RankBytes planned_bytes() const;
  void settle_kv_cache();
  [[nodiscard]] std::vector<RankTerms> all_offers() const;
  void check_plan() const;
  void measure_memory();
  void add_operations();
  void load_weights_again();
  [[nodiscard]] WarmUpLimits warm_up_limits() const;
  void settle_kv_scales();
  void load_other_weights(const std::string& model);
  [[nodiscard]] std::string state_checksum();

  ModelPlan plan_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  RankComms comms_;
  Rank rank_;
  std::unique_ptr<SleepMode> sleep_mode_;
  std::vector<float> calculated_kv_scales_;  // with --calculate-kv-scales
};

}  // namespace warprow
