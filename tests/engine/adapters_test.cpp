// SPDX-License-Identifier: Apache-2.0
// Loading an adapter on several ranks, whose answers the test gives.
#include "engine/adapters.h"

#include "executor/executor_wrapper.h"
#include "tests/sched/scheduler_rig.h"

#include <future>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Answers = std::vector<std::string>;

// Answers to load_lora as it is told, and keeps what it was asked.
class ToldRanks final : public ExecutorWrapper {
 public:
  ToldRanks() : ExecutorWrapper(nullptr) {}
  RankReplies collective_rpc(std::string_view operation,
                             const std::string& argument,
                             RankSet /*ranks*/) override {
    asked.push_back(std::string(operation) + " " + argument);
    std::promise<Answers> promise;
    promise.set_value(operation == "load_lora" ? answers : Answers(answers.size()));
    return promise.get_future();
  }

  Answers answers;
  std::vector<std::string> asked;
};

class AdaptersOfRanks : public ::testing::Test {
 protected:
  static SchedulerConfig scheduler_config() {
    SchedulerConfig config = testing::small_config();
    config.max_loras = 2;
    return config;
  }
  static ModelFacts facts() {
    ModelFacts facts;
    facts.max_loras = 2;
    facts.max_cpu_loras = 2;
    return facts;
  }

  ToldRanks ranks_;
  Scheduler scheduler_{scheduler_config()};
  ModelFacts facts_ = facts();
  Adapters adapters_{ranks_, scheduler_, facts_};
};

TEST_F(AdaptersOfRanks, AreLoadedWhenEveryRankHasReadItsPart) {
  const int32_t id = value_or_throw(adapters_.begin("a", "/a"));
  for (const Answers& answers :
       {Answers{"loading", "busy"}, Answers{"ready", "busy"}, Answers{"ready", "loading"}}) {
    ranks_.answers = answers;
    EXPECT_FALSE(value_or_throw(adapters_.poll(id)));
    EXPECT_FALSE(adapters_.find("a"));
  }
  ranks_.answers = {"ready", "ready"};
  EXPECT_TRUE(value_or_throw(adapters_.poll(id)));
  EXPECT_TRUE(adapters_.find("a"));
  EXPECT_TRUE(scheduler_.adapters().knows(id));
  EXPECT_EQ(ranks_.asked, Answers(4, "load_lora 0 /a"));
}

// The name is free again, and so are the places of ranks that could read it.
TEST_F(AdaptersOfRanks, OneRankThatFailsFailsTheLoadOnAll) {
  const int32_t id = value_or_throw(adapters_.begin("a", "/a"));
  ranks_.answers = {"loading", "error 1 /a: no such file"};
  EXPECT_FALSE(value_or_throw(adapters_.poll(id))) << "a rank still reads";
  ranks_.answers = {"ready", "error 1 /a: no such file"};
  const Result<bool> failed = adapters_.poll(id);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "rank 1: /a: no such file");
  EXPECT_EQ(failed.error().code, static_cast<ErrorCode>(1));
  EXPECT_EQ(ranks_.asked.back(), "unload_lora 0");
  EXPECT_FALSE(adapters_.find("a"));
  EXPECT_FALSE(scheduler_.adapters().knows(id));
  EXPECT_EQ(value_or_throw(adapters_.begin("a", "/b")), 1);
}

TEST_F(AdaptersOfRanks, WhatAllRanksSayNamesNone) {
  const int32_t id = value_or_throw(adapters_.begin("a", "/a"));
  ranks_.answers = Answers(2, "error 1 /a: no such file");
  EXPECT_EQ(adapters_.poll(id).error().message, "/a: no such file");
}

}  // namespace
}  // namespace warprow
