// SPDX-License-Identifier: Apache-2.0
// Scheduler and runner together on a tiny model for thousands of random steps: arrivals, aborts, preemptions, prefix
// hits. The oracle is the result of each prompt run alone.
#include "tests/support/model_rig.h"
#include "tests/support/source_path.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::ModelRig;
using test::RigOptions;

struct RunnerSimCase {
  const char* name;
  const char* model;
  int64_t num_blocks;
  cpu::CpuStreamMode mode;
  int32_t num_steps;
  uint32_t seed;
};
void PrintTo(const RunnerSimCase& sim, std::ostream* out) { *out << sim.name; }

constexpr int32_t kNumPrompts = 48;

RigOptions sim_options(const RunnerSimCase& sim) {
  RigOptions options;
  options.config.model = test::source_path("tests/golden/tiny/") + sim.model;
  options.config.dtype = "float32";
  options.config.max_model_len = 96;
  options.config.max_num_seqs = 8;
  options.config.max_num_batched_tokens = 40;
  options.config.kv_cache_memory_bytes = 1 << 22;
  options.device.num_threads = 1;
  options.device.mode = sim.mode;
  options.device.shuffle = sim.mode == cpu::CpuStreamMode::kDeferred;
  options.device.seed = sim.seed;
  return options;
}

// A fixed set of prompts. Many share prefixes.
std::vector<Request> make_prompts(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Request> prompts;
  for (int32_t i = 0; i < kNumPrompts; ++i) {
    Request request;
    if (i % 3 != 0) {
      const auto& earlier = prompts[random() % prompts.size()].prompt;
      request.prompt.assign(
          earlier.begin(), earlier.begin() + static_cast<int64_t>(random() % (earlier.size() + 1)));
    }
    const auto extra = 1 + random() % 30;
    for (uint32_t t = 0; t < extra && request.prompt.size() < 70; ++t) {
      request.prompt.push_back(static_cast<TokenId>(3 + random() % 125));
    }
    request.max_tokens = 1 + static_cast<int32_t>(random() % 24);
    request.stop_token_ids = {static_cast<TokenId>(random() % 128)};
    if (i % 2 == 0) {
      request.params.temperature = 1.0F;
      request.params.seed = static_cast<uint64_t>(i);
    }
    prompts.push_back(request);
  }
  return prompts;
}

std::vector<std::vector<TokenId>> alone(const RunnerSimCase& sim,
                                        const std::vector<Request>& prompts) {
  RigOptions options = sim_options(sim);
  options.config.async_scheduling = false;
  options.config.enable_prefix_caching = false;
  options.device.mode = cpu::CpuStreamMode::kInline;
  ModelRig rig(options);
  std::vector<std::vector<TokenId>> expected;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request = prompts[i];
    request.id = i + 1;
    rig.add(request);
    expected.push_back(rig.run().at(request.id).tokens);
  }
  return expected;
}

class RunnerSim : public ::testing::TestWithParam<RunnerSimCase> {};

TEST_P(RunnerSim, EveryTokenIsTheOracles) {
  const RunnerSimCase sim = GetParam();
  const std::vector<Request> prompts = make_prompts(sim.seed);
  const auto expected = alone(sim, prompts);
  RigOptions options = sim_options(sim);
  const ModelPlan plan = value_or_throw(plan_model(options.config, this_machine()));
  options.config.kv_cache_memory_bytes = sim.num_blocks * plan.kv_cache.block_bytes();
  ModelRig rig(options);
  std::mt19937 random(sim.seed + 1);
  std::map<uint64_t, size_t> prompt_of;
  std::set<uint64_t> aborted;
  std::vector<uint64_t> live;
  uint64_t next_id = 1;
  size_t num_finished = 0;
  for (int32_t step = 0; step < sim.num_steps; ++step) {
    if (live.size() < 14 && random() % 3 != 0) {
      const size_t which = random() % prompts.size();
      Request request = prompts[which];
      request.id = next_id++;
      prompt_of[request.id] = which;
      live.push_back(request.id);
      rig.add(request);
    }
    if (!live.empty() && random() % 23 == 0) {
      const uint64_t id = live[random() % live.size()];
      if (rig.scheduler().abort_request(id)) {
        aborted.insert(id);
      }
    }
    rig.tick();
    rig.scheduler().check_invariants();
    std::erase_if(live, [&](uint64_t id) {
      const test::RigResult& result = rig.results().at(id);
      const auto& want = expected[prompt_of[id]];
      const bool done = result.reason != FinishReason::kNone;
      // A request's tokens so far are a prefix of its result when run alone. A finished request has all of them.
      EXPECT_LE(result.tokens.size(), want.size());
      EXPECT_TRUE(std::equal(result.tokens.begin(), result.tokens.end(), want.begin()));
      EXPECT_TRUE(!done || result.tokens.size() == want.size());
      num_finished += done ? 1 : 0;
      return done || aborted.count(id) > 0;
    });
    ASSERT_FALSE(HasFailure()) << "step " << step;
  }
  rig.run();
  const SchedulerStats stats = rig.scheduler().stats();
  EXPECT_EQ(stats.num_kv_blocks_used, 0);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_GT(stats.num_preemptions, 0);
  EXPECT_GT(stats.num_prefix_hit_tokens, 0);
  EXPECT_GT(stats.num_mixed_steps, 0);
  EXPECT_GT(aborted.size(), 10U);
  EXPECT_GT(num_finished, 50U);
  std::printf("%zu finished, %zu aborted, %lld preemptions, %lld prefix-hit tokens\n",
              num_finished,
              aborted.size(),
              static_cast<long long>(stats.num_preemptions),
              static_cast<long long>(stats.num_prefix_hit_tokens));
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    RunnerSim,
    ::testing::Values(
        RunnerSimCase{"inline", "llama_gqa_tied", 20, cpu::CpuStreamMode::kInline, 4000, 1},
        RunnerSimCase{"threaded", "llama_gqa_tied", 20, cpu::CpuStreamMode::kThreaded, 2500, 2},
        RunnerSimCase{"deferred", "llama_gqa_tied", 20, cpu::CpuStreamMode::kDeferred, 1500, 3},
        RunnerSimCase{"two_groups", "qwen3_two_groups", 30, cpu::CpuStreamMode::kInline, 2500, 4}),
    [](const auto& sim) { return std::string(sim.param.name); });

}  // namespace
}  // namespace warprow
