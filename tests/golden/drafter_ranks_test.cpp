// SPDX-License-Identifier: Apache-2.0
// Models and heads that draft for a model which several ranks divide: every draft is that of the oracle, as on one rank, and
// the answers are those of as many ranks without drafts, bit for bit. The ranks are threads of this process. Each drafter is
// tried divided as the model is, and with all of it on every rank.
#include "tests/golden/divided_model.h"
#include "tests/support/eagle_case.h"
#include "tests/support/mtp_case.h"
#include "tests/support/source_path.h"
#include "worker/machine_facts.h"
#include "worker/model_plan.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::CommCounts;
using test::head_options;
using test::head_request;
using test::head_target_options;
using test::HeadCase;
using test::HeadFiles;
using test::HeadFormat;
using test::HeadRun;
using test::HeadTarget;
using test::ModelRig;
using test::mtp_options;
using test::mtp_target_options;
using test::MtpFamily;
using test::MtpFiles;
using test::RigOptions;
using test::small_options;
using ::testing::HasSubstr;

RigOptions on_ranks(RigOptions options, int32_t num_ranks) {
  options.config.tensor_parallel_size = num_ranks;
  return options;
}

// Adds a key to --speculative-config.
RigOptions with_key(RigOptions options, const std::string& key) {
  std::string& config = options.config.speculative_config;
  config = config.substr(0, config.size() - 1) + ", " + key + "}";
  return options;
}

RigOptions whole_on_every_rank(const RigOptions& options) {
  return with_key(options, R"("draft_tensor_parallel_size": 1)");
}

std::vector<Request> two_requests() { return {head_request(1, 17, 40), head_request(2, 1, 24)}; }

void expect_drafts_on_ranks(const HeadFiles& head,
                            int32_t num_ranks,
                            const HeadTarget& target = test::head_target()) {
  const auto of_target = [&](RigOptions options) {
    options.config.model = target.path();
    return on_ranks(std::move(options), num_ranks);
  };
  const RigOptions divided = of_target(head_options(head, 3));
  for (const RigOptions& options : {divided, whole_on_every_rank(divided)}) {
    SCOPED_TRACE(options.config.speculative_config);
    const HeadRun seen = test::expect_oracles_drafts(target.model(),
                                                     head.random.head(),
                                                     options,
                                                     of_target(head_target_options()),
                                                     two_requests(),
                                                     3);
    EXPECT_GT(seen.num_compared, 15);
  }
}

TEST(DrafterRanks, Eagle3OverTwoRanks) {
  expect_drafts_on_ranks(HeadFiles(HeadFormat::kEagle3, 8), 2);
}
TEST(DrafterRanks, Eagle3WithTheModelsVocabularyAndAnEmbedding) {
  expect_drafts_on_ranks(HeadFiles(HeadFormat::kEagle3, 0, true), 2);
}
TEST(DrafterRanks, SpeculatorsOverTwoRanks) {
  expect_drafts_on_ranks(HeadFiles(HeadFormat::kSpeculators, 40, true), 2);
}
TEST(DrafterRanks, EagleOverTwoRanks) { expect_drafts_on_ranks(HeadFiles(HeadFormat::kEagle), 2); }
// Fewer rows than ranks, so that some ranks choose no draft.
TEST(DrafterRanks, FourRanks) {
  const HeadTarget target(4);
  expect_drafts_on_ranks(HeadFiles(HeadFormat::kEagle3, 40, false, target), 4, target);
  expect_drafts_on_ranks(HeadFiles(HeadFormat::kEagle, 0, false, target), 4, target);
}

void expect_mtp_on_ranks(MtpFamily family) {
  const MtpFiles files(family);
  const RigOptions divided = on_ranks(mtp_options(files, 3), 2);
  for (const RigOptions& options : {divided, whole_on_every_rank(divided)}) {
    SCOPED_TRACE(options.config.speculative_config);
    const HeadRun seen = test::expect_oracles_drafts(files.random.model(),
                                                     files.random.head(),
                                                     options,
                                                     on_ranks(mtp_target_options(files), 2),
                                                     two_requests(),
                                                     3);
    EXPECT_GT(seen.num_compared, 15);
    EXPECT_GT(seen.stats.num_accepted_tokens, 0);
  }
}

TEST(DrafterRanks, MtpOfGlm4Moe) { expect_mtp_on_ranks(MtpFamily::kGlm4Moe); }
TEST(DrafterRanks, MtpOfQwen35) { expect_mtp_on_ranks(MtpFamily::kQwen35); }
TEST(DrafterRanks, MtpOfQwen3Next) { expect_mtp_on_ranks(MtpFamily::kQwen3Next); }

// Whatever the scheduler does, and whether forwards are recorded.
TEST(DrafterRanks, ChunksPreemptionsAndGraphs) {
  const HeadFiles head(HeadFormat::kEagle3, 8);
  for (const auto& make : {test::chunked_case, test::preempting_case, test::recorded_case}) {
    const HeadCase given = make(on_ranks(head_options(head, 3), 2));
    test::expect_oracles_drafts(
        head, given.options, on_ranks(head_target_options(), 2), given.requests, 3);
  }
}

Request ranks_request(uint64_t id, int32_t prompt_len, int32_t max_tokens) {
  Request request = head_request(id, prompt_len, max_tokens);
  request.token_lists.clear();
  request.params.flags = 0;
  return request;
}

// A model that drafts for itself.
RigOptions drafts_on_ranks(int32_t num_ranks) {
  const std::string model = test::source_path("tests/golden/tiny/qwen2");
  RigOptions options = on_ranks(small_options(model), num_ranks);
  options.config.speculative_config = test::draft_model_config(model, 3);
  return options;
}

void expect_right_and_without_effect(const RigOptions& options,
                                     const std::function<void(Request&)>& change = {}) {
  RigOptions without = options;
  without.config.speculative_config.clear();
  ModelRig rig(options);
  ModelRig plain(without);
  for (uint64_t id = 1; id <= 3; ++id) {
    Request request = ranks_request(id, 10 * static_cast<int32_t>(id), 41);
    if (change) {
      change(request);
    }
    rig.add(request);
    plain.add(request);
  }
  const auto& results = rig.run();
  const SchedulerStats stats = rig.scheduler().stats();
  EXPECT_GT(stats.num_accepted_tokens, 80);
  EXPECT_GE(stats.num_accepted_tokens, stats.num_drafted_tokens - 3 * 2 * 3);
  if (change) {
    return;  // other draws
  }
  for (const auto& [id, expected] : plain.run()) {
    EXPECT_EQ(results.at(id).tokens, expected.tokens);
    EXPECT_EQ(results.at(id).top, expected.top);
    EXPECT_EQ(results.at(id).reason, expected.reason);
  }
}

// The model's own forward on as many ranks yields the drafts, so all of them are right.
TEST(DrafterRanks, ADraftModelForItself) {
  expect_right_and_without_effect(drafts_on_ranks(2));
  expect_right_and_without_effect(drafts_on_ranks(4));
  expect_right_and_without_effect(whole_on_every_rank(drafts_on_ranks(4)));
}

// Where target and draft have the same distribution, every draft is accepted: each rank must know the distributions of all
// rows, also of those whose logits another one has.
TEST(DrafterRanks, DrawnDraftsForItself) {
  const auto random = [](Request& request) {
    request.params.temperature = 0.8F;
    request.params.seed = request.id;
  };
  const std::string ratio = R"("rejection_sample_method": "ratio")";
  expect_right_and_without_effect(with_key(drafts_on_ranks(2), ratio), random);
  expect_right_and_without_effect(with_key(whole_on_every_rank(drafts_on_ranks(4)), ratio), random);
}

// A divided draft model has the sums of its layers and of its embedding, an exchange and one gather for each draft.
TEST(DrafterRanks, OperationsOfAStep) {
  const auto counts_of = [](RigOptions options) {
    options.config.async_scheduling = false;
    ModelRig rig(options);
    Request request = ranks_request(1, 3, 60);
    request.params.num_logprobs = Request().params.num_logprobs;
    rig.add(request);
    const auto run_to = [&](int64_t steps) {
      while (rig.scheduler().stats().num_steps < steps) {
        EXPECT_TRUE(rig.tick());
      }
      return rig.ranks().counts(1);
    };
    const CommCounts before = run_to(4);
    return run_to(5) - before;
  };
  constexpr int64_t kLayers = 2;
  constexpr int64_t kDrafts = 3;
  EXPECT_EQ(counts_of(drafts_on_ranks(2)),
            (CommCounts{.all_reduces = (1 + kDrafts) * (2 * kLayers + 1),
                        .all_gathers = 1 + kDrafts,
                        .exchanges = 1 + kDrafts}));
  EXPECT_EQ(
      counts_of(whole_on_every_rank(drafts_on_ranks(2))),
      (CommCounts{.all_reduces = 2 * kLayers + 1, .all_gathers = 1 + kDrafts, .exchanges = 1}));
}

TEST(DrafterRanks, SleepRestoresTheDrafter) {
  ModelRig rig(drafts_on_ranks(2));
  rig.add(ranks_request(1, 12, 21));
  const std::vector<TokenId> before = rig.run().at(1).tokens;
  const int64_t accepted = rig.scheduler().stats().num_accepted_tokens;
  rig.executor().call(SleepRanks{2}).get();
  rig.executor().call(WakeRanks{}).get();
  rig.scheduler().reset_prefix_cache();
  rig.add(ranks_request(2, 12, 21));
  Request again = ranks_request(1, 12, 21);
  again.id = 3;
  rig.add(again);
  EXPECT_EQ(rig.run().at(3).tokens, before);
  EXPECT_GE(rig.scheduler().stats().num_accepted_tokens, 2 * accepted);
}

TEST(DrafterRanks, EachRankHoldsItsPart) {
  const auto bytes = [](const RigOptions& options) {
    RigOptions without = options;
    without.config.speculative_config.clear();
    const auto plan = [](const RigOptions& of) {
      return value_or_throw(plan_model(of.config, this_machine())).memory.weights_bytes;
    };
    return plan(options) - plan(without);
  };
  const int64_t whole = bytes(drafts_on_ranks(1));
  EXPECT_LT(bytes(drafts_on_ranks(4)), whole / 2);
  EXPECT_EQ(bytes(whole_on_every_rank(drafts_on_ranks(4))), whole);
}

TEST(DrafterRanks, WhatDoesNotFitIsRefused) {
  const auto error_of = [](const RigOptions& options) {
    const auto plan = plan_model(options.config, this_machine());
    return plan ? std::string() : plan.error().message;
  };
  EXPECT_THAT(error_of(with_key(drafts_on_ranks(4), R"("draft_tensor_parallel_size": 2)")),
              HasSubstr("draft_tensor_parallel_size: 2 is neither 1 nor the "
                        "--tensor-parallel-size of 4"));
  // A head with two heads of attention for a model with four.
  const HeadTarget target(4);
  const HeadFiles head(HeadFormat::kEagle3, 8);
  RigOptions options = on_ranks(head_options(head, 3), 4);
  options.config.model = target.path();
  EXPECT_THAT(error_of(options), HasSubstr("--speculative-config: layer 0: num_attention_heads 2"));
  EXPECT_EQ(error_of(whole_on_every_rank(options)), "");
  options = drafts_on_ranks(1);
  options.config.pipeline_parallel_size = 2;
  EXPECT_THAT(error_of(options), HasSubstr("--pipeline-parallel-size: 2 with a draft model"));
}

}  // namespace
}  // namespace warprow
