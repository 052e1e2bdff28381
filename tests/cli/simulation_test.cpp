// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/simulation.h"

#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// A step takes 1 ms, and 1 ms for each token more.
CostTable ms_costs() {
  CostTable costs;
  costs.prefill_us = CostCurve({{1, 1000}, {1001, 1001000}});
  costs.decode_us = costs.prefill_us;
  return costs;
}

SchedulerConfig small_config(int32_t num_blocks = 64) {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 256;
  config.max_concurrent_steps = 2;
  KvGroupSpec group;
  group.block_size = 16;
  config.kv = {{group}, num_blocks};
  return config;
}

ArrivalTrace trace_of(const std::vector<TraceRequest>& requests) {
  ArrivalTrace trace;
  trace.requests = requests;
  return trace;
}

constexpr double kMs = 1e-3;

TEST(Simulation, OneRequestTakesWhatItsStepsTake) {
  CostTable costs = ms_costs();
  costs.host_us = 100;
  costs.request_us = 50;
  const SimulationResult result =
      simulate(small_config(),
               costs,
               trace_of({{.arrival_s = 2, .input_tokens = 10, .output_tokens = 4}}),
               {});
  const ServeRecord& record = result.records.requests.front();
  EXPECT_EQ(record.error, "");
  EXPECT_DOUBLE_EQ(record.start_s, 2);
  // The way there, the host, ten tokens, the way back.
  EXPECT_NEAR(record.ttft_s, 0.05 * kMs + 0.1 * kMs + 10 * kMs + 0.05 * kMs, 1e-9);
  // The next step was submitted while this one ran.
  EXPECT_THAT(record.itls_s, Each(::testing::DoubleNear(1 * kMs, 1e-9)));
  EXPECT_EQ(record.itls_s.size(), 3);
  EXPECT_EQ(record.num_output_tokens, 4);
  EXPECT_EQ(record.num_input_tokens, 10);
  EXPECT_NEAR(result.records.duration_s, 2 + record.latency_s, 1e-9);
  EXPECT_NEAR(result.busy_s, 13 * kMs, 1e-9);
  EXPECT_EQ(result.records.max_concurrent, 1);
}

// Without planning ahead the host's time is between any two steps.
TEST(Simulation, WithoutPlanningAheadTheHostIsSeen) {
  SchedulerConfig config = small_config();
  config.max_concurrent_steps = 1;
  CostTable costs = ms_costs();
  costs.host_us = 100;
  const SimulationResult result =
      simulate(config, costs, trace_of({{.input_tokens = 10, .output_tokens = 4}}), {});
  EXPECT_THAT(result.records.requests.front().itls_s, Each(::testing::DoubleNear(1.1 * kMs, 1e-9)));
}

TEST(Simulation, TheSchedulerBatchesAndQueues) {
  std::vector<TraceRequest> requests(6, TraceRequest{.input_tokens = 16, .output_tokens = 8});
  const SimulationResult result = simulate(small_config(), ms_costs(), trace_of(requests), {});
  EXPECT_EQ(result.records.max_concurrent, 6);
  EXPECT_EQ(result.most_waiting, 2);  // rows for four
  // Four prompts fill one step of 64 tokens.
  EXPECT_NEAR(result.records.requests[0].ttft_s, 64 * kMs, 1e-9);
  EXPECT_NEAR(result.records.requests[3].ttft_s, 64 * kMs, 1e-9);
  // The others wait for seven steps of four rows, their own first step is beside none.
  EXPECT_NEAR(result.records.requests[4].ttft_s, (64 + 7 * 4 + 32) * kMs, 1e-9);
  EXPECT_EQ(result.scheduler.num_preemptions, 0);
}

// A request that streams, and after 20 ms a prompt of 100 tokens, which takes 100 ms as a whole.
TEST(Simulation, PromptsKeepToTheTimeBetweenTokens) {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 128;
  const auto run = [&](double target_us) {
    SimulationOptions options;
    options.target_step_us = target_us;
    return simulate(config,
                    ms_costs(),
                    trace_of({{.arrival_s = 0, .input_tokens = 30, .output_tokens = 100},
                              {.arrival_s = 0.05, .input_tokens = 100, .output_tokens = 1}}),
                    options);
  };
  const auto longest_gap_s = [](const SimulationResult& result) {
    return std::ranges::max(result.records.requests[0].itls_s);
  };
  EXPECT_NEAR(longest_gap_s(run(0)), 101 * kMs, 1e-9);
  const SimulationResult limited = run(25'000);
  EXPECT_LE(longest_gap_s(limited), 25 * kMs + 1e-9);
  EXPECT_GT(longest_gap_s(limited), 20 * kMs);
  EXPECT_EQ(limited.records.requests[1].num_output_tokens, 1);
  // The next token comes with the step that has the rest.
  EXPECT_LE(limited.records.requests[1].ttft_s, (100 + 2 * 25) * kMs);
}

TEST(Simulation, AFullCachePreempts) {
  // Each grows from 2 blocks to 8; 20 are there.
  std::vector<TraceRequest> requests(4, TraceRequest{.input_tokens = 30, .output_tokens = 90});
  const SimulationResult result = simulate(small_config(21), ms_costs(), trace_of(requests), {});
  EXPECT_GT(result.scheduler.num_preemptions, 0);
  EXPECT_GE(result.most_blocks_used, 19);
  for (const ServeRecord& record : result.records.requests) {
    EXPECT_EQ(record.num_output_tokens, 90);
    EXPECT_EQ(record.itls_s.size(), 89);
  }
}

TEST(Simulation, KeysArePrefixesThatAreCached) {
  ArrivalTrace trace;
  trace.keys = {7, 8, 7, 9, 5, 8};
  const auto request = [](double at, int64_t first) {
    return TraceRequest{.arrival_s = at,
                        .input_tokens = 80,
                        .output_tokens = 2,
                        .prefix_unit = 32,
                        .first_key = first,
                        .num_keys = 2};
  };
  trace.requests = {request(0, 0), request(1, 0), request(2, 2), request(3, 4)};
  const SimulationResult result = simulate(small_config(), ms_costs(), trace, {});
  // The second has both keys of the first, the third its first, the fourth a key behind another.
  EXPECT_EQ(result.scheduler.num_prefix_hit_tokens, 64 + 32);
  EXPECT_NEAR(result.records.requests[1].ttft_s, 16 * kMs, 1e-9);
  EXPECT_NEAR(result.records.requests[2].ttft_s, 48 * kMs, 1e-9);
  SchedulerConfig config = small_config();
  config.enable_prefix_caching = false;
  EXPECT_EQ(simulate(config, ms_costs(), trace, {}).scheduler.num_prefix_hit_tokens, 0);
}

TEST(Simulation, KnownTokensAreUsed) {
  ArrivalTrace trace;
  trace.tokens.assign(96, 1);
  trace.requests = {{.input_tokens = 48, .output_tokens = 1, .first_token = 0},
                    {.arrival_s = 1, .input_tokens = 48, .output_tokens = 1, .first_token = 48}};
  EXPECT_EQ(simulate(small_config(), ms_costs(), trace, {}).scheduler.num_prefix_hit_tokens, 32);
}

TEST(Simulation, AConcurrencyIsKeptAsByAClient) {
  std::vector<TraceRequest> requests(5, TraceRequest{.input_tokens = 8, .output_tokens = 3});
  int64_t done = 0;
  const SimulationResult result =
      simulate(small_config(),
               ms_costs(),
               trace_of(requests),
               {.max_concurrency = 1, .on_progress = [&done](int64_t n, int64_t) { done = n; }});
  EXPECT_EQ(result.records.max_concurrent, 1);
  EXPECT_EQ(done, 5);
  double start = 0;
  for (const ServeRecord& record : result.records.requests) {
    EXPECT_NEAR(record.start_s, start, 1e-9);
    EXPECT_NEAR(record.ttft_s, 8 * kMs, 1e-9);
    start += record.latency_s;
  }
}

TEST(Simulation, TooLongRequestsFailAlone) {
  const SimulationResult result = simulate(small_config(),
                                           ms_costs(),
                                           trace_of({{.input_tokens = 300, .output_tokens = 3},
                                                     {.input_tokens = 8, .output_tokens = 3}}),
                                           {});
  EXPECT_THAT(result.records.requests[0].error, HasSubstr("max_model_len 256"));
  EXPECT_EQ(result.records.requests[1].error, "");
  EXPECT_EQ(result.records.requests[1].num_output_tokens, 3);
}

}  // namespace
}  // namespace warprow
