// SPDX-License-Identifier: Apache-2.0
// The execution layer on a GPU, with random weights: driver calls and waits per step, memory compared with the plan and
// with the driver, empty steps, and thousands of random steps in lockstep with a CPU.
#include "base/check.h"
#include "base/error.h"
#include "device/cuda_device.h"
#include "tests/support/model_rig.h"
#include "tests/support/step_work.h"
#include "tests/support/temp_dir.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using test::expect_empty_steps_change_nothing;
using test::ModelRig;
using test::RigOptions;
using test::run_steps;

constexpr const char* kSmallModel = R"({
  "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4, "hidden_size": 256,
  "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512,
  "vocab_size": 2000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
  "tie_word_embeddings": true})";
// The shape of Qwen3-0.6B.
constexpr const char* kRealModel = R"({
  "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 1024,
  "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
  "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
  "rope_theta": 1000000, "tie_word_embeddings": true})";

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t free_bytes() { return cuda::find_device().facts.free_bytes; }

class RuntimeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why_not = cuda::find_device().why_not; !why_not.empty()) {
      GTEST_SKIP() << why_not;
    }
    small_.write("config.json", kSmallModel);
    real_.write("config.json", kRealModel);
  }

  [[nodiscard]] RigOptions options() const {
    RigOptions options;
    options.config.model = small_.path().string();
    options.config.load_format = "dummy";
    options.config.device = "cuda";
    options.config.max_model_len = 1024;
    options.config.max_num_seqs = 8;
    options.config.max_num_batched_tokens = 64;
    options.config.kv_cache_memory_bytes = 16 * kMiB;
    options.config.enable_prefix_caching = false;
    return options;
  }
  [[nodiscard]] std::string real_model() const { return real_.path().string(); }

  static Request request(uint64_t id, int32_t prompt_len, int32_t max_tokens) {
    return test::numbered_request(id, prompt_len, max_tokens, 2000);
  }
  static nlohmann::json memory_plan(ModelRig& rig) {
    return nlohmann::json::parse(rig.executor().call(ReadMemoryPlan{}).get().front());
  }

 private:
  test::TempDir small_;
  test::TempDir real_;
};

TEST_F(RuntimeCuda, SteadyDecodesReplayWithFewDriverCalls) {
  RigOptions few = options();
  few.config.cudagraph_capture_sizes = "1,2,4,8";
  ModelRig rig(few);
  for (uint64_t id = 1; id <= 5; ++id) {
    rig.add(request(id, 4, 600));
  }
  run_steps(rig, 10);
  const ExecutorStats before = rig.executor().stats();
  run_steps(rig, 512);
  const ExecutorStats after = rig.executor().stats();
  EXPECT_EQ(after.graphs_full - before.graphs_full, 2 * 512);
  EXPECT_EQ(after.graphs_eager, before.graphs_eager);
  EXPECT_EQ(after.graphs_piecewise, before.graphs_piecewise);
  EXPECT_EQ(after.padded_toks - before.padded_toks, 3 * 512);
  const int64_t calls = after.driver_calls - before.driver_calls;
  EXPECT_GT(calls, 0);
  EXPECT_LE(calls, 5 * 512);
  std::printf("%.2f driver calls a step\n", static_cast<double>(calls) / 512);
}

TEST_F(RuntimeCuda, EmptyStepsChangeNoState) {
  for (const char* mode : {"none", "full_and_piecewise"}) {
    SCOPED_TRACE(mode);
    RigOptions with = options();
    with.config.cudagraph_mode = mode;
    ModelRig rig(with);
    rig.add(request(1, 20, 30));
    run_steps(rig, 6);
    const auto before = rig.executor().call(StateChecksum{}).get();
    expect_empty_steps_change_nothing(rig, {0, 6, 64});
    EXPECT_EQ(rig.run().at(1).tokens.size(), 30U);
    EXPECT_NE(rig.executor().call(StateChecksum{}).get(), before);
  }
}

// Building, running and destroying an engine leaves no device memory in use.
TEST_F(RuntimeCuda, MemoryBeforeEqualsMemoryAfter) {
  const auto use = [this] {
    ModelRig rig(options());
    for (uint64_t id = 1; id <= 6; ++id) {
      rig.add(request(id, 50, 40));
    }
    rig.run();
    EXPECT_GT(rig.executor().stats().graph_captures, 0);
  };
  use();  // libraries and kernels are loaded once per process
  const int64_t before = free_bytes();
  use();
  EXPECT_EQ(free_bytes(), before);
}

// At start-up the plan agrees with the device on weights, state, activations, cache and driver memory. Graph captures
// stay within the memory reserved for them.
TEST_F(RuntimeCuda, ThePlanIsWhatTheDriverSays) {
  RigOptions real = options();
  real.config.model = real_model();
  real.config.max_num_seqs = 256;
  real.config.max_num_batched_tokens = 8192;
  real.config.max_model_len = 4096;
  real.config.kv_cache_memory_bytes = 4096 * kMiB;
  real.debug_checks = false;
  ModelRig rig(real);
  const nlohmann::json plan = memory_plan(rig);
  const auto planned = plan["planned_bytes"].get<int64_t>() - plan["graph_bytes"].get<int64_t>();
  const auto measured = plan["measured_bytes"].get<int64_t>();
  const int64_t bound = std::max(64 * kMiB, planned / 200);
  std::printf("at start: planned %.1f MiB, measured %.1f MiB\n",
              static_cast<double>(planned) / kMiB,
              static_cast<double>(measured) / kMiB);
  EXPECT_LE(std::abs(planned - measured), bound);

  const int64_t before = free_bytes();
  for (uint64_t id = 1; id <= 256; ++id) {  // captures every graph size
    rig.add(request(id, 1 + static_cast<int32_t>(id) % 97, 8 + static_cast<int32_t>(id)));
  }
  rig.run();
  const ExecutorStats stats = rig.executor().stats();
  const int64_t taken = before - free_bytes();
  std::printf(
      "graphs: %lld captures, %.1f MiB by their own count, %.1f MiB of %.1f MiB set aside\n",
      static_cast<long long>(stats.graph_captures),
      static_cast<double>(stats.graph_bytes) / kMiB,
      static_cast<double>(taken) / kMiB,
      plan["graph_bytes"].get<double>() / kMiB);
  EXPECT_GT(stats.graph_captures, 20);
  EXPECT_LE(stats.graph_bytes, plan["graph_bytes"].get<int64_t>());
  EXPECT_LE(taken, stats.graph_bytes + 64 * kMiB);
}

TEST_F(RuntimeCuda, TooLittleMemoryIsRefusedBeforeLoading) {
  const int64_t before = free_bytes();
  EngineConfig config = options().config;
  config.kv_cache_memory_bytes = int64_t{1} << 40;
  const auto too_large = plan_model(config, this_machine("cuda"));
  ASSERT_FALSE(too_large);
  EXPECT_EQ(too_large.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(too_large.error().message.find("of KV cache do not fit in"), std::string::npos)
      << too_large.error().message;

  // Another process has taken half of the free memory.
  const auto device = cuda::make_cuda_device();
  const Arena other =
      device->make_arena(ArenaPurpose::kWorkspace, static_cast<size_t>(free_bytes() / 2));
  config.kv_cache_memory_bytes = 0;
  const auto not_free = plan_model(config, this_machine("cuda"));
  ASSERT_FALSE(not_free);
  EXPECT_EQ(not_free.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(not_free.error().message.find("are free"), std::string::npos)
      << not_free.error().message;
  EXPECT_GE(free_bytes(), before / 2 - 64 * kMiB);
}

TEST_F(RuntimeCuda, ADeviceThatIsNotThereIsRefusedByItsNumber) {
  const std::string why_not = cuda::find_device(1000).why_not;
  EXPECT_NE(why_not.find("no CUDA device 1000: there are "), std::string::npos) << why_not;
  EXPECT_THROW(cuda::make_cuda_device(1000), StartupError);
  EXPECT_FALSE(this_machine("cuda", 1000).why_no_cuda.empty());
}

TEST_F(RuntimeCuda, AnArenaThatDoesNotFitLeavesNoAddressesReserved) {
  constexpr size_t kBytes = size_t{32}
                            << 40;  // a process has address space for only a few of these
  const auto device = cuda::make_cuda_device();
  for (int i = 0; i < 8; ++i) {
    EXPECT_THROW(device->make_arena(ArenaPurpose::kWorkspace, kBytes), StartupError);
  }
}

// Sleep gives memory back to the driver. Wake-up maps it again at the same addresses. Graphs captured before still
// replay, and the same prompt yields the same tokens. After level 2 the random weights are generated anew.
TEST_F(RuntimeCuda, SleepGivesMemoryBackAndChangesNoAnswer) {
  RigOptions large = options();
  large.config.model = real_model();
  large.config.kv_cache_memory_bytes = 2048 * kMiB;
  ModelRig rig(large);
  uint64_t id = 0;
  const auto answer = [&] {
    Request same = request(1, 24, 30);
    same.id = ++id;
    rig.add(same);
    return rig.run().at(id).tokens;
  };
  answer();
  answer();  // captures
  const std::vector<TokenId> expected = answer();
  EXPECT_EQ(expected.size(), 30U);
  const int64_t captures = rig.executor().stats().graph_captures;
  EXPECT_GT(captures, 0);
  for (const int level : {1, 2}) {
    const int64_t before = free_bytes();
    const auto report = nlohmann::json::parse(rig.executor().call(SleepRanks{level}).get().front());
    const auto given = report["weights_bytes"].get<int64_t>() + report["kv_bytes"].get<int64_t>();
    EXPECT_GT(given, 3000 * kMiB);
    EXPECT_GE(free_bytes() - before, given * 95 / 100);
    rig.executor().call(WakeRanks{"weights"}).get();
    rig.executor().call(WakeRanks{"kv_cache"}).get();
    EXPECT_LE(std::abs(free_bytes() - before), 4 * kMiB);
    EXPECT_EQ(answer(), expected) << "level " << level;
    EXPECT_EQ(rig.executor().stats().graph_captures, captures);
  }
}

// What a step did, without token values, because near-ties may differ.
struct StepAccount {
  std::vector<RowId> finished, preempted;
  std::vector<ScheduledRow> scheduled;
  std::vector<BlockAppend> appends;
  std::vector<BlockId> blocks;
  int32_t num_blocks_used = 0;
  bool operator==(const StepAccount&) const = default;
};
StepAccount account_of(ModelRig& rig) {
  const SchedulerOutput& step = rig.step();
  return {step.finished_rows,
          step.preempted_rows,
          step.scheduled,
          step.block_appends,
          step.block_ids,
          rig.scheduler().stats().num_kv_blocks_used};
}

// Prompts share prefixes, but no prompt is a prefix of another. Blocks with sampled tokens are thus never shared, and
// the cache's hits do not depend on sampled tokens.
Request random_request(std::mt19937& random, uint64_t id) {
  Request request;
  request.id = id;
  const auto shared = random() % 40;
  for (uint32_t t = 0; t < shared; ++t) {
    request.prompt.push_back(static_cast<TokenId>(100 + t));
  }
  const auto extra = random() % 30;
  for (uint32_t t = 0; t < extra; ++t) {
    request.prompt.push_back(static_cast<TokenId>(200 + random() % 1700));
  }
  request.prompt.push_back(static_cast<TokenId>(3 + id % 90));
  request.prompt.push_back(static_cast<TokenId>(200 + id / 90 % 1700));
  request.max_tokens = 1 + static_cast<int32_t>(random() % 40);
  if (id % 2 == 0) {
    request.params.temperature = 1.0F;
    request.params.seed = id;
    request.params.top_k = id % 3 == 0 ? 20 : 0;
    request.params.top_p = id % 5 == 0 ? 0.9F : 1.0F;
    request.params.repetition_penalty = id % 7 == 0 ? 1.2F : 1.0F;
  }
  return request;
}

// A CPU and the GPU run the same requests in lockstep. After every tick both must have done the same. A check fails on
// every wait for the device within a step and on every copy of pageable memory.
TEST_F(RuntimeCuda, TenThousandRandomStepsAreAccountedAsOnACpu) {
  const char* setting = std::getenv("WARPROW_TEST_STEPS");  // fewer steps under compute-sanitizer
  const int64_t num_steps = setting != nullptr ? std::atoll(setting) : 10000;
  RigOptions gpu_options = options();
  gpu_options.config.max_model_len = 128;
  gpu_options.config.max_num_seqs = 16;
  gpu_options.config.enable_prefix_caching = true;
  gpu_options.config.cudagraph_capture_sizes = "1,2,4,8,16,32";
  gpu_options.config.dtype = "bfloat16";
  const ModelPlan plan = value_or_throw(plan_model(gpu_options.config, this_machine("cuda")));
  gpu_options.config.kv_cache_memory_bytes = 48 * plan.kv_cache.block_bytes();
  RigOptions cpu_options = gpu_options;
  cpu_options.config.device = "cpu";
  cpu_options.config.cudagraph_mode = "none";
  cpu_options.device.num_threads = 2;
  cpu_options.device.mode = cpu::CpuStreamMode::kInline;
  ModelRig gpu(gpu_options);
  ModelRig cpu(cpu_options);
  ASSERT_EQ(gpu.scheduler().stats().num_kv_blocks, cpu.scheduler().stats().num_kv_blocks);

  std::mt19937 random(5);
  uint64_t next_id = 1;
  std::vector<uint64_t> live;
  std::set<uint64_t> aborted;
  int64_t free_at_start = 0;
  int64_t graph_bytes_at_start = 0;
  size_t num_equal = 0;
  size_t num_finished = 0;
  while (gpu.executor().stats().steps < num_steps) {
    if (live.size() < 24 && random() % 3 != 0) {
      const Request request = random_request(random, next_id);
      live.push_back(next_id++);
      gpu.add(request);
      cpu.add(request);
    }
    if (!live.empty() && random() % 19 == 0) {
      const uint64_t id = live[random() % live.size()];
      ASSERT_EQ(gpu.scheduler().abort_request(id), cpu.scheduler().abort_request(id));
      aborted.insert(id);
    }
    ASSERT_EQ(gpu.tick(), cpu.tick());
    ASSERT_EQ(account_of(gpu), account_of(cpu)) << "step " << gpu.step().step;
    std::erase_if(live, [&](uint64_t id) {
      const test::RigResult& mine = gpu.results().at(id);
      const test::RigResult& oracle = cpu.results().at(id);
      EXPECT_EQ(mine.tokens.size(), oracle.tokens.size()) << id;
      EXPECT_EQ(mine.reason, oracle.reason) << id;
      EXPECT_EQ(mine.num_cached_tokens, oracle.num_cached_tokens) << id;
      EXPECT_TRUE(std::all_of(mine.tokens.begin(), mine.tokens.end(), [](TokenId token) {
        return token >= 0 && token < 2000;
      }));
      const bool done = mine.reason != FinishReason::kNone;
      num_finished += done ? 1 : 0;
      num_equal += done && mine.tokens == oracle.tokens ? 1 : 0;
      return done || aborted.count(id) > 0;
    });
    ASSERT_FALSE(HasFailure()) << "step " << gpu.step().step;
    if (gpu.executor().stats().steps == num_steps / 4) {
      free_at_start = free_bytes();
      graph_bytes_at_start = gpu.executor().stats().graph_bytes;
    }
  }
  gpu.run();
  cpu.run();
  const SchedulerStats stats = gpu.scheduler().stats();
  const ExecutorStats graphs = gpu.executor().stats();
  EXPECT_EQ(stats.num_kv_blocks_used, 0);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_scheduled_tokens, cpu.scheduler().stats().num_scheduled_tokens);
  EXPECT_EQ(stats.num_preemptions, cpu.scheduler().stats().num_preemptions);
  EXPECT_GT(stats.num_prefix_hit_tokens, 0);
  EXPECT_GT(stats.num_mixed_steps, num_steps / 10);
  EXPECT_GT(graphs.graphs_full, 0);
  EXPECT_GT(graphs.graphs_piecewise, 0);
  if (setting == nullptr) {  // short runs see no preemption, and a checker takes memory itself
    EXPECT_GT(stats.num_preemptions, 0);
    EXPECT_EQ(free_at_start - free_bytes(), graphs.graph_bytes - graph_bytes_at_start);
  }
  std::printf(
      "%zu finished, %zu of them token by token as on the CPU, %zu aborted, "
      "%lld preemptions, graphs: %lld full, %lld piecewise, %lld eager\n",
      num_finished,
      num_equal,
      aborted.size(),
      static_cast<long long>(stats.num_preemptions),
      static_cast<long long>(graphs.graphs_full),
      static_cast<long long>(graphs.graphs_piecewise),
      static_cast<long long>(graphs.graphs_eager));
}

}  // namespace
}  // namespace warprow
