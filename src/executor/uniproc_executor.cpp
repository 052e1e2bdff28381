// SPDX-License-Identifier: Apache-2.0
#include "base/alloc_counter.h"
#include "base/check.h"
#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda_device.h"
#include "executor/external/launch.h"
#include "executor/make_executor.h"
#include "executor/plan_facts.h"
#include "worker/device_ids.h"
#include "worker/ruled_options.h"
#include "worker/worker.h"

#include <algorithm>
#include <exception>
#include <future>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warprow {
namespace {

// One worker in this process and on the engine's thread: submitting a step returns as soon as it is
// enqueued, so the engine plans the next one while the device runs.
class UniprocExecutor final : public Executor {
 public:
  UniprocExecutor(ModelPlan plan, std::unique_ptr<Device> device, const RankComms& comms)
      : worker_(std::move(plan), std::move(device), comms), facts_(plan_facts(worker_.plan())) {
    allocations_before_ = counted_allocations();
  }

  const ModelFacts& model_facts() const override { return facts_; }
  int32_t max_concurrent_batches() const override {
    return worker_.plan().runner.max_steps_in_flight;
  }

  void enter_thread() override { worker_.use_here(); }
  void execute_model(const SchedulerOutput& step) override {
    const CountAllocations count;
    worker_.execute_model(step);
  }
  void sample_tokens(const GrammarOutput* grammar) override {
    const CountAllocations count;
    worker_.sample_tokens(grammar);
    ++stats_.steps;
    stats_.max_steps_in_flight =
        std::max<int64_t>(stats_.max_steps_in_flight, worker_.num_outstanding());
  }
  bool forward_done() const override { return worker_.forward_done(); }
  int32_t num_outstanding() const override { return worker_.num_outstanding(); }
  bool output_ready() const override { return worker_.output_ready(); }
  void take_output(ModelRunnerOutput& output) override {
    const CountAllocations count;
    worker_.take_output(output);
    stats_.row_state_bytes += output.stats.row_state_bytes;
    stats_.padded_toks += output.stats.num_toks_padded - output.stats.num_toks;
  }

  // Runs on the caller's thread, which is the worker's.
  RankReplies collective_rpc(std::string_view operation,
                             const std::string& argument,
                             RankSet ranks) override {
    WR_CHECK_EQ(ranks.one.value_or(0), 0);
    std::promise<std::vector<std::string>> replies;
    try {
      std::optional<std::string> reply = worker_.call(std::string(operation), argument);
      WR_CHECK(reply.has_value(), "unknown operation {}", operation);
      replies.set_value({std::move(*reply)});
    } catch (const StartupError&) {
      replies.set_exception(std::current_exception());
    }
    return replies.get_future();
  }

  ExecutorStats stats() const override {
    ExecutorStats stats = stats_;
    stats.step_allocations = counted_allocations() - allocations_before_;
    stats.workspace_high_water = worker_.workspace_high_water();
    stats.workspace_planned = worker_.plan().memory.workspace_bytes;
    stats.output_wait_ns = worker_.output_wait_ns();
    stats.driver_calls = worker_.num_driver_calls();
    const GraphStats& graphs = worker_.graph_stats();
    stats.graphs_full = graphs.full;
    stats.graphs_piecewise = graphs.piecewise;
    stats.graphs_eager = graphs.eager;
    stats.graph_captures = graphs.captures;
    stats.graph_evictions = graphs.evictions;
    stats.graph_bytes = graphs.bytes;
    return stats;
  }

 private:
  Worker worker_;
  ModelFacts facts_;
  ExecutorStats stats_;
  // The device's threads count allocations from their start; those of loading are subtracted.
  int64_t allocations_before_ = 0;
};

void refuse_rules(const LogitsRules& rules, const char* where) {
  if (!rules.empty()) {
    throw StartupError(ErrorCode::kUnsupported,
                       fmt::format("logits rules: not supported with {}", where));
  }
}

}  // namespace

std::unique_ptr<Executor> make_uniproc_executor(ModelPlan plan,
                                                std::unique_ptr<Device> device,
                                                const RankComms& comms) {
  return std::make_unique<UniprocExecutor>(std::move(plan), std::move(device), comms);
}

std::unique_ptr<Executor> make_executor(const EngineConfig& config, const LogitsRules& rules) {
  if (cuda::known_device(config.device) != nullptr) {
    throw StartupError(
        ErrorCode::kInvalidArgument,
        fmt::format("--device: {} is for plans; use cuda to run on a GPU", config.device));
  }
  value_or_throw(check_parallel_sizes(config));
  const bool stages = config.pipeline_parallel_size > 1;
  const bool several = config.tensor_parallel_size > 1 || stages;
  if (several && config.distributed_executor_backend == "uni") {
    throw StartupError(
        ErrorCode::kInvalidArgument,
        fmt::format("--distributed-executor-backend: uni runs one rank, and "
                    "--{}-parallel-size is {}; use mp",
                    stages ? "pipeline" : "tensor",
                    stages ? config.pipeline_parallel_size : config.tensor_parallel_size));
  }
  if (several || config.distributed_executor_backend == "mp" || is_external(config)) {
    refuse_rules(rules, "ranks in processes of their own");
    return make_mp_executor(config);
  }
  const int32_t ordinal = value_or_throw(device_ordinal(config, 0, 1));
  const MachineFacts machine = this_machine(config.device, ordinal);
  ModelPlan plan = value_or_throw(plan_model(config, machine, ruled_options(rules)));
  value_or_throw(check_device(config, plan.config.device, machine.why_no_cuda));
  if (plan.config.device == "cuda") {
    refuse_rules(rules, "a GPU");
    return make_uniproc_executor(std::move(plan), cuda::make_cuda_device(ordinal));
  }
  cpu::CpuDeviceOptions options;
  options.num_threads = plan.config.threads;
  options.pin_threads = plan.config.pin_threads;
  return make_uniproc_executor(std::move(plan), cpu::make_cpu_device(options));
}

}  // namespace warprow
