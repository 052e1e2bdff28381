// SPDX-License-Identifier: Apache-2.0
#include "engine/prefill_budget.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

// Steps of num_decodes rows that decode and a prompt's chunk, which take decode_us and tok_us for each prompt token.
struct Machine {
  PrefillBudget budget;
  double decode_us = 20'000;
  double tok_us = 500;
  double now_us = 1e9;

  double run(int32_t num_decodes, int32_t num_prefill_toks) {
    SchedulerOutput step;
    for (int32_t i = 0; i < num_decodes; ++i) {
      step.scheduled.push_back({RowId{i}, 1, 100, 0, 1});
    }
    if (num_prefill_toks > 0) {
      step.scheduled.push_back({RowId{num_decodes}, num_prefill_toks, 0, 0, 0});
    }
    step.total_num_tokens = num_decodes + num_prefill_toks;
    budget.launch(step, now_us);
    const double took_us = (num_decodes > 0 ? decode_us : 0) + tok_us * num_prefill_toks;
    now_us += took_us;
    budget.finish(now_us);
    return took_us;
  }
  // A mixed step as large as the budget allows.
  double run_full() { return run(4, budget.max_toks()); }
};

TEST(PrefillBudget, WithoutATargetThereIsNoLimit) {
  Machine machine{PrefillBudget(0, 2)};
  EXPECT_EQ(machine.budget.max_toks(), 0);
  machine.run(0, 500);
  machine.run(4, 16);
  EXPECT_EQ(machine.budget.max_toks(), 0);
}

TEST(PrefillBudget, FollowsFromWhatStepsTook) {
  Machine machine{PrefillBudget(100'000, 2)};
  EXPECT_EQ(machine.budget.max_toks(), 1) << "nothing is known";
  machine.run(0, 5);
  EXPECT_EQ(machine.budget.max_toks(), 1) << "few tokens say little about many";
  machine.run(0, 400);
  EXPECT_EQ(machine.budget.max_toks(), 200) << "no decoding row was seen";
  machine.run(4, 0);
  EXPECT_EQ(machine.budget.max_toks(), 160);
  EXPECT_DOUBLE_EQ(machine.run_full(), 100'000);
}

TEST(PrefillBudget, OneSlowStepChangesNothing) {
  Machine machine{PrefillBudget(100'000, 2)};
  for (int i = 0; i < 5; ++i) {
    machine.run(0, 400);
    machine.run(4, 0);
  }
  machine.tok_us = 50'000;
  machine.decode_us = 2'000'000;
  machine.run(0, 400);
  machine.run(4, 0);
  EXPECT_EQ(machine.budget.max_toks(), 160);
}

// Every step has prompts, so what decoding rows take is not measured again.
TEST(PrefillBudget, FollowsALoadWithoutStepsOfDecodesAlone) {
  Machine machine{PrefillBudget(100'000, 2)};
  for (int i = 0; i < 5; ++i) {
    machine.run(0, 400);
    machine.run(4, 0);
  }
  for (const double decode_us : {60'000.0, 5'000.0}) {
    machine.decode_us = decode_us;
    for (const double tok_us : {500.0, 2'000.0, 100.0}) {
      machine.tok_us = tok_us;
      for (int i = 0; i < 100; ++i) {
        machine.run_full();
      }
      EXPECT_NEAR(machine.run_full(), 100'000, 25'000) << decode_us << " " << tok_us;
    }
  }
}

TEST(PrefillBudget, ATargetOutOfReachLeavesTheLeast) {
  Machine machine{PrefillBudget(10'000, 2)};
  machine.run(0, 400);
  machine.run(4, 0);
  EXPECT_EQ(machine.budget.max_toks(), 1);
}

// A step that is launched while another runs begins when that ends.
TEST(PrefillBudget, StepsInFlightAreNotCountedTwice) {
  PrefillBudget budget(100'000, 2);
  SchedulerOutput prompt;
  prompt.scheduled.push_back({RowId{0}, 100, 0, 0, 0});
  prompt.total_num_tokens = 100;
  budget.launch(prompt, 0);
  budget.launch(prompt, 1'000);
  budget.finish(50'000);
  EXPECT_EQ(budget.max_toks(), 200);
  budget.launch(SchedulerOutput(), 51'000);
  budget.finish(100'000);
  budget.finish(100'001);  // a step without tokens measures nothing
  EXPECT_EQ(budget.max_toks(), 200);
}

}  // namespace
}  // namespace warprow
