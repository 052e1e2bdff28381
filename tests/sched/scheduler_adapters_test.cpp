// SPDX-License-Identifier: Apache-2.0
// Admission of requests with adapters: at most max_loras of them have rows.
#include "tests/sched/scheduler_rig.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::small_config;
using testing::tokens_from;
using Rig = testing::SchedulerRig;

SchedulerConfig lora_config(int32_t max_loras) {
  SchedulerConfig config = small_config();
  config.max_loras = max_loras;
  return config;
}

void load(Rig& rig, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    rig.scheduler.adapters().add(i);
  }
}

Request adapter_request(uint64_t id, int32_t adapter, int32_t max_tokens = 3) {
  Request request;
  request.id = id;
  request.prompt = tokens_from(static_cast<int32_t>(id), 4);
  request.max_tokens = max_tokens;
  request.adapter = adapter;
  return request;
}

int32_t num_running(const Rig& rig, int32_t adapter) {
  for (const AdapterUse& use : rig.scheduler.adapters().uses()) {
    if (use.adapter == adapter) {
      return use.num_running;
    }
  }
  return -1;
}

TEST(SchedulerAdapters, RefusesOneThatIsNotLoaded) {
  Rig rig(lora_config(2));
  const auto added = rig.scheduler.add_request(adapter_request(1, 0));
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, ErrorCode::kNotFound);
}

TEST(SchedulerAdapters, OthersPassARequestWhoseAdapterHasNoPlace) {
  Rig rig(lora_config(2));
  load(rig, 3);
  rig.add(adapter_request(1, 0));
  rig.add(adapter_request(2, 1));
  rig.add(adapter_request(3, 2, 1));
  rig.add(adapter_request(4, 0));
  rig.add(adapter_request(5, -1));
  ASSERT_TRUE(rig.run_step());
  EXPECT_EQ(num_running(rig, 0), 2);
  EXPECT_EQ(num_running(rig, 1), 1);
  EXPECT_EQ(num_running(rig, 2), 0);
  EXPECT_EQ(rig.scheduler.stats().num_running, 4);
  EXPECT_EQ(rig.scheduler.stats().num_waiting, 1);
  while (rig.run_step()) {
  }
  EXPECT_EQ(rig.scheduler.stats().num_waiting, 0);
  for (const int32_t adapter : {0, 1, 2}) {
    EXPECT_EQ(num_running(rig, adapter), 0);
    EXPECT_TRUE(rig.scheduler.adapters().remove(adapter));
  }
}

TEST(SchedulerAdapters, AnAdapterWithRequestsIsNotRemoved) {
  Rig rig(lora_config(1));
  load(rig, 2);
  rig.add(adapter_request(1, 0));
  rig.add(adapter_request(2, 1));
  EXPECT_FALSE(rig.scheduler.adapters().remove(0));
  ASSERT_TRUE(rig.run_step());
  EXPECT_FALSE(rig.scheduler.adapters().remove(0));
  EXPECT_FALSE(rig.scheduler.adapters().remove(1)) << "its request waits";
  rig.scheduler.abort_request(1);
  rig.scheduler.abort_request(2);
  EXPECT_TRUE(rig.scheduler.adapters().remove(0));
  EXPECT_TRUE(rig.scheduler.adapters().remove(1));
}

// New requests of the adapter that runs keep coming, and the other one's turn comes all the same.
TEST(SchedulerAdapters, AWaitingAdapterIsNotPassedForEver) {
  Rig rig(lora_config(1));
  load(rig, 2);
  uint64_t id = 1;
  rig.add(adapter_request(id++, 0, 2));
  ASSERT_TRUE(rig.run_step());
  const uint64_t other = id++;
  rig.add(adapter_request(other, 1, 1));
  int32_t steps = 0;
  while (num_running(rig, 1) == 0 && steps < 4 * kMaxPassed) {
    rig.add(adapter_request(id++, 0, 2));
    rig.launch();
    if (num_running(rig, 1) > 0) {
      break;
    }
    rig.collect();
    ++steps;
  }
  EXPECT_GT(steps, 2);
  EXPECT_LT(steps, 2 * kMaxPassed);
}

// Every request ends, with the number of adapters that run within the limit in every step.
TEST(SchedulerAdapters, AllEndUnderPreemptionAndAsyncSteps) {
  SchedulerConfig config = lora_config(2);
  config.kv.num_blocks = 7;
  config.max_concurrent_steps = 2;
  Rig rig(config);
  load(rig, 4);
  std::set<uint64_t> left;
  for (uint64_t id = 1; id <= 24; ++id) {
    left.insert(id);
    rig.add(adapter_request(id, static_cast<int32_t>(id % 5) - 1, 20));
  }
  bool launched = true;
  while (launched || !rig.pending.empty()) {
    launched = rig.pending.size() < 2 && rig.launch();
    int32_t used = 0;
    for (const AdapterUse& use : rig.scheduler.adapters().uses()) {
      used += use.num_running > 0 ? 1 : 0;
    }
    ASSERT_LE(used, 2);
    if (!launched && !rig.pending.empty()) {
      rig.collect();
      for (const RequestDelta& delta : rig.deltas) {
        if (delta.reason != FinishReason::kNone) {
          left.erase(delta.id);
        }
      }
      launched = true;
    }
  }
  EXPECT_TRUE(left.empty());
  EXPECT_GT(rig.scheduler.stats().num_preemptions, 0);
}

}  // namespace
}  // namespace warprow
