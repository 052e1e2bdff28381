// SPDX-License-Identifier: Apache-2.0
// Layers of a model's own checkpoint that predict further tokens, in each layout in which they are published: every draft is
// that of a reading of the published rules in doubles, whatever the scheduler did before, and the answers are those without
// drafts.
#include "tests/support/mtp_case.h"
#include "worker/machine_facts.h"
#include "worker/model_plan.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::head_request;
using test::HeadCase;
using test::HeadRun;
using test::mtp_options;
using test::mtp_target_options;
using test::MtpFamily;
using test::MtpFiles;
using test::RigOptions;
using ::testing::HasSubstr;

HeadRun expect_mtp_drafts(const MtpFiles& files,
                          const RigOptions& options,
                          const std::vector<Request>& requests,
                          int32_t num_drafts) {
  return test::expect_oracles_drafts(files.random.model(),
                                     files.random.head(),
                                     options,
                                     mtp_target_options(files),
                                     requests,
                                     num_drafts);
}

// K drafts of each family. A prompt of one token has its first draft at position 0.
void expect_family(MtpFamily family) {
  const MtpFiles files(family);
  for (const int32_t num_drafts : {1, 3, 7}) {
    SCOPED_TRACE(num_drafts);
    const HeadRun seen = expect_mtp_drafts(files,
                                           mtp_options(files, num_drafts),
                                           {head_request(1, 17, 40), head_request(2, 1, 24)},
                                           num_drafts);
    EXPECT_GT(seen.num_compared, 15);
    EXPECT_GT(seen.stats.num_accepted_tokens, 0);
  }
}

TEST(Mtp, DeepSeeksLayoutInGlm4Moe) { expect_family(MtpFamily::kGlm4Moe); }
TEST(Mtp, QwensLayoutInQwen35) { expect_family(MtpFamily::kQwen35); }
TEST(Mtp, QwensLayoutInQwen3Next) { expect_family(MtpFamily::kQwen3Next); }

// vllm#14649: keys and values of accepted drafts come from the model's states. The oracle computes all of them from these.
TEST(Mtp, AcceptedDraftsGetKeysFromTheModelsStates) {
  const MtpFiles files(MtpFamily::kGlm4Moe);
  const HeadRun seen = expect_mtp_drafts(
      files, mtp_options(files, 4), {head_request(1, 30, 120), head_request(2, 7, 100)}, 4);
  EXPECT_GT(seen.stats.num_accepted_tokens, 8);
}

TEST(Mtp, APromptInChunks) {
  const MtpFiles files(MtpFamily::kGlm4Moe);
  const HeadCase given = test::chunked_case(mtp_options(files, 3));
  const HeadRun seen = expect_mtp_drafts(files, given.options, given.requests, 3);
  EXPECT_GT(seen.stats.num_partial_prefill_steps, 0);
  EXPECT_GT(seen.stats.num_mixed_steps, 0);
}

TEST(Mtp, APreemptedRow) {
  const MtpFiles files(MtpFamily::kQwen35);
  const HeadCase given = test::preempting_case(mtp_options(files, 3));
  const HeadRun seen = expect_mtp_drafts(files, given.options, given.requests, 3);
  EXPECT_GT(seen.stats.num_preemptions, 0);
}

TEST(Mtp, RecordedForwards) {
  const MtpFiles files(MtpFamily::kQwen3Next);
  const HeadCase given = test::recorded_case(mtp_options(files, 3));
  const HeadRun seen = expect_mtp_drafts(files, given.options, given.requests, 3);
  EXPECT_GT(seen.stats.num_accepted_tokens, 0);
}

TEST(Mtp, APrefixFromTheCache) {
  const MtpFiles files(MtpFamily::kGlm4Moe);
  test::expect_drafts_after_a_hit(mtp_options(files, 3));
}

TEST(Mtp, AHitAtTheEdgeOfABlockWithAnotherNextToken) {
  const MtpFiles files(MtpFamily::kGlm4Moe);
  test::expect_answers_after_a_hit_at_an_edge(mtp_options(files, 3), mtp_target_options(files));
}

// A draft's room behind a prompt's tokens does not move the checkpoint of the states: at each distance from a block's end.
TEST(Mtp, APrefixFromACheckpointOfTheStates) {
  const MtpFiles files(MtpFamily::kQwen35);
  const RigOptions plain = mtp_target_options(files);
  RigOptions options = mtp_options(files, 3);
  options.config.enable_prefix_caching = true;
  test::ModelRig without(plain);
  test::ModelRig with(options);
  for (uint64_t id = 1; id <= 34; ++id) {
    Request request;
    request.id = id;
    // The odd ones leave checkpoints, the even ones begin with the same tokens.
    const auto length = static_cast<int32_t>(28 + (id - 1) / 2);
    for (int32_t i = 0; i < length; ++i) {
      request.prompt.push_back((i * i + 3 * length) % 60);
    }
    for (int32_t i = 0; i < 9 && id % 2 == 0; ++i) {
      request.prompt.push_back(5 + 3 * i);
    }
    request.max_tokens = 12;
    for (test::ModelRig* rig : {&without, &with}) {
      rig->add(request);
      rig->run();
    }
    EXPECT_EQ(with.results().at(id).tokens, without.results().at(id).tokens) << length;
  }
  EXPECT_GT(with.scheduler().stats().num_prefix_hit_tokens, 17 * 16);
}

TEST(Mtp, AnEightBitCache) {
  for (const MtpFamily family : {MtpFamily::kGlm4Moe, MtpFamily::kQwen35}) {
    const MtpFiles files(family);
    test::expect_answers_in_an_eight_bit_cache(mtp_options(files, 3), mtp_target_options(files));
  }
}

TEST(Mtp, ThePlanCountsTheLayer) {
  const MtpFiles files(MtpFamily::kGlm4Moe);
  const ModelPlan without =
      value_or_throw(plan_model(mtp_target_options(files).config, this_machine()));
  const ModelPlan with = value_or_throw(plan_model(mtp_options(files, 3).config, this_machine()));
  EXPECT_GT(with.memory.weights_bytes, without.memory.weights_bytes);
  EXPECT_GT(with.memory.kv_block_bytes, without.memory.kv_block_bytes);
  EXPECT_EQ(with.memory.checkpoint_bytes, without.memory.checkpoint_bytes);
}

TEST(Mtp, ADraftATimeUnlessMoreAreAskedFor) {
  const MtpFiles files(MtpFamily::kGlm4Moe);
  RigOptions options = mtp_target_options(files);
  options.config.speculative_config = R"({"method":"glm4_moe_mtp"})";
  EXPECT_EQ(value_or_throw(plan_model(options.config, this_machine())).runner.max_drafts, 1);
}

TEST(Mtp, WhatDoesNotFitIsRefused) {
  const auto error_with = [](MtpFamily family, const std::function<void(nlohmann::json&)>& change) {
    const MtpFiles files(family);
    nlohmann::json config = files.random.config();
    change(config);
    files.dir.write("config.json", config.dump());
    const auto plan = plan_model(mtp_options(files, 3).config, this_machine());
    return plan ? std::string() : plan.error().message;
  };
  using Json = nlohmann::json;
  // One layer less: what lies behind the last one is a layer of the model, without the tensors.
  EXPECT_THAT(error_with(MtpFamily::kGlm4Moe, [](Json& c) { c["num_hidden_layers"] = 2; }),
              HasSubstr("no layer that predicts further tokens: no tensor "
                        "model.layers.2.eh_proj.weight, model.layers.2.enorm.weight, "
                        "model.layers.2.hnorm.weight, model.layers.2.shared_head.norm.weight"));
  EXPECT_THAT(error_with(MtpFamily::kGlm4Moe, [](Json& c) { c["num_nextn_predict_layers"] = 2; }),
              HasSubstr("num_nextn_predict_layers: 2 is not supported, 1 is"));
  EXPECT_THAT(error_with(MtpFamily::kQwen35, [](Json& c) { c["mtp_num_hidden_layers"] = 0; }),
              HasSubstr("mtp_num_hidden_layers: 0 is not supported, 1 is"));
  EXPECT_THAT(
      error_with(MtpFamily::kQwen35, [](Json& c) { c["mtp_use_dedicated_embeddings"] = true; }),
      HasSubstr("mtp_use_dedicated_embeddings: true is not supported"));

  RigOptions options = test::head_target_options();
  options.config.speculative_config = test::mtp_config(3);
  const auto llama = plan_model(options.config, this_machine());
  ASSERT_FALSE(llama);
  EXPECT_THAT(llama.error().message,
              HasSubstr("method: mtp: no layer that predicts further tokens is known of "
                        "LlamaForCausalLM"));
}

}  // namespace
}  // namespace warprow
