// SPDX-License-Identifier: Apache-2.0
// Heads that draft from hidden states, in each format in which they are published: every draft is that of a reading of the
// published rules in doubles, whatever the scheduler did before, and the answers are those without drafts.
#include "tests/support/eagle_case.h"
#include "worker/machine_facts.h"
#include "worker/model_plan.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::head_options;
using test::head_request;
using test::head_target_options;
using test::HeadCase;
using test::HeadFiles;
using test::HeadFormat;
using test::HeadRun;
using test::ModelRig;
using test::RigOptions;
using ::testing::HasSubstr;

HeadRun expect_head_drafts(const HeadFiles& head,
                           const RigOptions& options,
                           const std::vector<Request>& requests,
                           int32_t num_drafts) {
  return test::expect_oracles_drafts(
      head, options, test::head_target_options(), requests, num_drafts);
}

// K drafts in each format. With 8 ids of its own, and few tokens in the answers, some of them are right.
void expect_format(HeadFormat format, int draft_vocab, bool own_embedding = false) {
  const HeadFiles head(format, draft_vocab, own_embedding);
  for (const int32_t num_drafts : {1, 3, 7}) {
    SCOPED_TRACE(num_drafts);
    const HeadRun seen = expect_head_drafts(head,
                                            head_options(head, num_drafts),
                                            {head_request(1, 17, 40), head_request(2, 1, 24)},
                                            num_drafts);
    EXPECT_GT(seen.num_compared, 15);
    if (draft_vocab > 0) {
      EXPECT_GT(seen.stats.num_accepted_tokens, 0);
    }
  }
}

TEST(Eagle, TheAuthorsFormatOfEagle3) { expect_format(HeadFormat::kEagle3, 8); }
TEST(Eagle, Eagle3WithTheModelsVocabularyAndAnEmbedding) {
  expect_format(HeadFormat::kEagle3, 0, true);
}
TEST(Eagle, TheFormatOfSpeculators) { expect_format(HeadFormat::kSpeculators, 8, true); }
TEST(Eagle, TheAuthorsFormatOfEagle) { expect_format(HeadFormat::kEagle, 0); }

// vllm#38111: heads of gpt-oss norm the states of three layers together.
TEST(Eagle, ANormInFrontOfFc) {
  HeadFiles head(HeadFormat::kEagle3, 8);
  head.random.add_states_norm();
  head.dir.write("config.json", head.random.config().dump());
  head.dir.write("model.safetensors", head.random.weights());
  const HeadRun seen = expect_head_drafts(
      head, head_options(head, 3), {head_request(1, 17, 40), head_request(2, 1, 24)}, 3);
  EXPECT_GT(seen.num_compared, 15);
}

// vllm#14649: keys and values of accepted drafts come from the model's states, not from those that the head guessed. The
// oracle computes all of them from the model's.
TEST(Eagle, AcceptedDraftsGetKeysFromTheModelsStates) {
  const HeadFiles head(HeadFormat::kEagle3, 4);
  const HeadRun seen = expect_head_drafts(
      head, head_options(head, 4), {head_request(1, 30, 120), head_request(2, 7, 100)}, 4);
  EXPECT_GT(seen.stats.num_accepted_tokens, 15);
}

TEST(Eagle, APromptInChunks) {
  const HeadFiles head(HeadFormat::kEagle3, 8);
  const HeadCase given = test::chunked_case(head_options(head, 3));
  const HeadRun seen = expect_head_drafts(head, given.options, given.requests, 3);
  EXPECT_GT(seen.stats.num_partial_prefill_steps, 0);
  EXPECT_GT(seen.stats.num_mixed_steps, 0);
}

TEST(Eagle, APreemptedRow) {
  const HeadFiles head(HeadFormat::kEagle3, 8);
  const HeadCase given = test::preempting_case(head_options(head, 3));
  const HeadRun seen = expect_head_drafts(head, given.options, given.requests, 3);
  EXPECT_GT(seen.stats.num_preemptions, 0);
}

TEST(Eagle, RecordedForwards) {
  const HeadFiles head(HeadFormat::kEagle3, 8);
  const HeadCase given = test::recorded_case(head_options(head, 3));
  const HeadRun seen = expect_head_drafts(head, given.options, given.requests, 3);
  EXPECT_GT(seen.stats.num_accepted_tokens, 0);
}

TEST(Eagle, APrefixFromTheCache) {
  const HeadFiles head(HeadFormat::kEagle3, 8);
  test::expect_drafts_after_a_hit(head_options(head, 3));
}

TEST(Eagle, AHitAtTheEdgeOfABlockWithAnotherNextToken) {
  const HeadFiles head(HeadFormat::kEagle3, 4);
  test::expect_answers_after_a_hit_at_an_edge(head_options(head, 3), head_target_options());
}

TEST(Eagle, AnEightBitCache) {
  const HeadFiles eagle3(HeadFormat::kEagle3, 4);
  test::expect_answers_in_an_eight_bit_cache(head_options(eagle3, 3), head_target_options());
  const HeadFiles eagle(HeadFormat::kEagle);
  RigOptions options = head_options(eagle, 3);
  options.config.kv_cache_dtype = "fp8_e4m3";
  ModelRig rig(options);
  rig.add(head_request(1, 17, 40));
  EXPECT_EQ(rig.run().at(1).tokens.size(), 40);
}

// A power of two as a scale changes the exponents in the cache and nothing else, while those of zeros lose all keys.
TEST(Eagle, AnEightBitCacheWithTheHeadsScales) {
  const auto drafts_with = [](float scale) {
    HeadFiles head(HeadFormat::kEagle3, 8);
    if (scale != 1.0F) {
      head.random.add_kv_scales(scale);
      head.dir.write("model.safetensors", head.random.weights());
    }
    RigOptions options = head_options(head, 3);
    options.config.kv_cache_dtype = "fp8_e5m2";
    ModelRig rig(options);
    rig.add(head_request(1, 17, 40));
    return rig.run().at(1).proposed;
  };
  const auto expected = drafts_with(1.0F);
  EXPECT_EQ(drafts_with(0.25F), expected);
  EXPECT_NE(drafts_with(0x1p40F), expected);
}

TEST(Eagle, ThePlanCountsTheHead) {
  const HeadFiles head(HeadFormat::kEagle3, 8);
  const ModelPlan without =
      value_or_throw(plan_model(head_target_options().config, this_machine()));
  const ModelPlan with = value_or_throw(plan_model(head_options(head, 3).config, this_machine()));
  EXPECT_GT(with.memory.weights_bytes, without.memory.weights_bytes);
  EXPECT_GT(with.memory.workspace_bytes, without.memory.workspace_bytes);
  EXPECT_GT(with.memory.kv_block_bytes, without.memory.kv_block_bytes);
}

// The number of drafts that a head of speculators was made for.
TEST(Eagle, TheFileMayNameTheNumberOfDrafts) {
  const HeadFiles head(HeadFormat::kSpeculators, 8);
  RigOptions options = head_target_options();
  options.config.speculative_config =
      R"({"method":"eagle3","model":")" + head.dir.path().string() + R"("})";
  EXPECT_EQ(value_or_throw(plan_model(options.config, this_machine())).runner.max_drafts, 5);
}

TEST(Eagle, WhatDoesNotFitIsRefused) {
  const auto error_with = [](const std::function<void(nlohmann::json&)>& change,
                             HeadFormat format = HeadFormat::kEagle3) {
    const HeadFiles head(format, format == HeadFormat::kEagle ? 0 : 8);
    nlohmann::json config = head.random.config();
    change(config);
    head.dir.write("config.json", config.dump());
    const auto plan = plan_model(head_options(head, 3).config, this_machine());
    return plan ? std::string() : plan.error().message;
  };
  using Json = nlohmann::json;
  EXPECT_THAT(error_with([](Json& c) { c["vocab_size"] = 127; }),
              HasSubstr("vocab_size: 127, the model that it drafts for has 128"));
  EXPECT_THAT(error_with([](Json& c) { c["target_hidden_size"] = 48; }),
              HasSubstr("its states have 48 elements, those of the model 64"));
  EXPECT_THAT(error_with([](Json& c) { c["eagle_aux_hidden_state_layer_ids"] = {1, 2, 5}; }),
              HasSubstr("states in front of layer 5 of a model of 4"));
  EXPECT_THAT(error_with([](Json& c) { c["eagle_aux_hidden_state_layer_ids"] = {2, 1, 3}; }),
              HasSubstr("[2,1,3] is not a list of 3 ascending layers"));
  EXPECT_THAT(error_with([](Json& c) { c["draft_vocab_size"] = 9; }), HasSubstr("d2t"));
  EXPECT_THAT(error_with([](Json& c) { c["norm_before_fc"] = true; }, HeadFormat::kEagle),
              HasSubstr("norm_before_fc: true is not supported of eagle, but of eagle3"));
  EXPECT_THAT(error_with([](Json& c) { c["eagle_config"]["norm_before_fc"] = true; }),
              HasSubstr("input_norm.weight"));
  EXPECT_THAT(error_with([](Json& c) { c["norm_output"] = true; }, HeadFormat::kSpeculators),
              HasSubstr("norm_output: true is not supported"));
  EXPECT_THAT(error_with([](Json& c) { c["fc_norm"] = true; }, HeadFormat::kSpeculators),
              HasSubstr("fc_norm: true is not supported"));
  EXPECT_THAT(error_with([](Json& c) { c["speculators_model_type"] = "mlp"; }),
              HasSubstr("speculators_model_type: \"mlp\" is not read by the method eagle3"));
  EXPECT_THAT(
      error_with([](Json& c) { c.erase("transformer_layer_config"); }, HeadFormat::kSpeculators),
      HasSubstr("transformer_layer_config is missing"));
}

}  // namespace
}  // namespace warprow
