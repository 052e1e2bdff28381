// SPDX-License-Identifier: Apache-2.0
// Drafts that are drawn and verified by ratio: answers have the distribution of a run without drafts, and a request's tokens
// are its own.
#include "tests/support/distribution_distance.h"
#include "tests/support/eagle_case.h"
#include "tests/support/model_rig.h"
#include "tests/support/mtp_case.h"
#include "tests/support/random_model.h"
#include "tests/support/source_path.h"
#include "worker/machine_facts.h"
#include "worker/model_plan.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::by_ratio;
using test::HeadFiles;
using test::HeadFormat;
using test::ModelRig;
using test::RandomModel;
using test::RigOptions;
using test::small_options;
using ::testing::HasSubstr;
using Answer = std::vector<TokenId>;

std::string tiny_model() {
  return test::source_path("tests/golden/tiny/llama_gqa_tied/model.gguf");
}

// Two models that know eight tokens, and differ.
struct SmallPair {
  test::TempDir target_dir;
  test::TempDir drafter_dir;
  std::string target = model(1).write(target_dir);
  std::string drafter = model(2).write(drafter_dir);

  static RandomModel model(uint32_t seed) {
    return {.num_heads = 1,
            .num_kv_heads = 1,
            .num_layers = 1,
            .hidden_size = 64,
            .intermediate_size = 64,
            .vocab_size = 8,
            .seed = seed};
  }
};

// The probabilities of the answers of `length` tokens from `alphabet`, from logprobs of runs without drafts.
std::map<Answer, double> law_of(RigOptions options,
                                const Request& request,
                                const std::vector<TokenId>& alphabet,
                                size_t length) {
  options.config.logprobs_mode = "processed_logprobs";
  std::map<Answer, double> law = {{Answer(), 1.0}};
  for (size_t n = 0; n < length; ++n) {
    ModelRig rig(options);
    std::vector<Answer> prefixes;
    for (const auto& [prefix, probability] : law) {
      Request next = request;
      next.id = prefixes.size() + 1;
      next.prompt.insert(next.prompt.end(), prefix.begin(), prefix.end());
      next.max_tokens = 1;
      next.params.num_logprobs = static_cast<int32_t>(alphabet.size());
      rig.add(next);
      prefixes.push_back(prefix);
    }
    rig.run();
    std::map<Answer, double> longer;
    for (size_t i = 0; i < prefixes.size(); ++i) {
      for (const auto& [token, logprob] : rig.results().at(i + 1).top.at(0)) {
        Answer answer = prefixes[i];
        answer.push_back(token);
        longer[answer] = law.at(prefixes[i]) * std::exp(static_cast<double>(logprob));
      }
    }
    law = longer;
  }
  return law;
}

struct Answers {
  std::map<Answer, int32_t> seen;
  SchedulerStats stats;
};

// The answers to the same request under many seeds.
Answers answers_to(const RigOptions& options, const Request& request, int32_t num_seeds) {
  ModelRig rig(options);
  for (int32_t i = 0; i < num_seeds; ++i) {
    Request next = request;
    next.id = 1 + static_cast<uint64_t>(i);
    next.params.seed = next.id;
    rig.add(next);
  }
  Answers answers;
  for (const auto& [id, result] : rig.run()) {
    ++answers.seen[result.tokens];
  }
  answers.stats = rig.scheduler().stats();
  return answers;
}

// The first token has no draft. The others are drafts of the first step or, behind a rejected one, of the next. A penalty
// makes a draft part of the rules behind it.
TEST(Ratio, AnswersHaveTheDistributionOfTheModel) {
  const SmallPair models;
  Request request;
  request.prompt = {1, 5, 2, 7};
  request.max_tokens = 3;
  request.params.temperature = 1.2F;
  request.params.top_p = 0.95F;
  request.params.repetition_penalty = 1.4F;
  RigOptions options = small_options(models.target);
  options.config.max_num_seqs = 32;
  options.config.max_num_batched_tokens = 256;
  const std::map<Answer, double> law =
      law_of(options, request, {0, 1, 2, 3, 4, 5, 6, 7}, static_cast<size_t>(request.max_tokens));
  options.config.speculative_config = by_ratio(test::draft_model_config(models.drafter, 2));
  const Answers answers = answers_to(options, request, 12000);
  EXPECT_LT(test::distance(law, answers.seen), 1.0);
  const SchedulerStats& stats = answers.stats;
  EXPECT_GT(stats.num_accepted_tokens, stats.num_drafted_tokens / 5);
  EXPECT_LT(stats.num_accepted_tokens, stats.num_drafted_tokens * 4 / 5);
}

TEST(Ratio, AnswersWithAHeadHaveTheDistributionOfTheModel) {
  const HeadFiles head(HeadFormat::kEagle3, 4);
  Request request = test::head_request(1, 17, 3);
  request.params.temperature = 1.5F;
  request.params.num_logprobs = -1;
  RigOptions options = test::head_target_options();
  const std::map<Answer, double> law = law_of(options, request, {1, 33, 65, 97}, 3);
  options.config.speculative_config =
      by_ratio(test::head_config(head.method(), head.dir.path().string(), 2));
  const Answers answers = answers_to(options, request, 8000);
  EXPECT_LT(test::distance(law, answers.seen), 1.0);
  EXPECT_GT(answers.stats.num_accepted_tokens, answers.stats.num_drafted_tokens / 20);
  EXPECT_LT(answers.stats.num_accepted_tokens, answers.stats.num_drafted_tokens * 9 / 10);
}

// A seed has the same tokens alone and beside others, with its prompt in chunks, behind a row that takes all of a step's
// room, from recorded work, and with another number of threads.
void expect_own_tokens(const RigOptions& alone, const std::vector<Request>& requests) {
  std::map<uint64_t, Answer> expected;
  for (const Request& request : requests) {
    ModelRig rig(alone);
    rig.add(request);
    expected[request.id] = rig.run().at(request.id).tokens;
    EXPECT_EQ(expected[request.id].size(), static_cast<size_t>(request.max_tokens));
  }
  const auto expect_same = [&](const RigOptions& options) {
    ModelRig rig(options);
    for (const Request& request : requests) {
      rig.add(request);
    }
    for (const auto& [id, result] : rig.run()) {
      EXPECT_EQ(result.tokens, expected.at(id)) << id;
    }
    rig.scheduler().check_invariants();
    EXPECT_EQ(rig.scheduler().stats().num_preemptions, 0);
    EXPECT_GT(rig.scheduler().stats().num_accepted_tokens, 0);
    EXPECT_LT(rig.scheduler().stats().num_accepted_tokens,
              rig.scheduler().stats().num_drafted_tokens);
    return rig.scheduler().stats();
  };
  expect_same(alone);
  RigOptions tight = alone;
  tight.config.max_num_batched_tokens = 13;
  tight.config.max_num_seqs = 6;
  tight.config.threads = tight.device.num_threads = 3;
  tight.serialize = true;
  EXPECT_GT(expect_same(tight).num_partial_prefill_steps, 0);
  RigOptions recorded = alone;
  recorded.config.cudagraph_mode = "full";
  recorded.config.cudagraph_capture_sizes = "4,12,32,128";
  recorded.device.mode = cpu::CpuStreamMode::kDeferred;
  recorded.device.shuffle = true;
  recorded.device.seed = 5;
  expect_same(recorded);
}

std::vector<Request> random_requests(int32_t vocab) {
  std::vector<Request> requests;
  for (int32_t id = 1; id <= 6; ++id) {
    Request request;
    request.id = static_cast<uint64_t>(id);
    for (int32_t i = 0; i < 3 + 9 * id; ++i) {
      request.prompt.push_back((i * i + 7 * id) % vocab);
    }
    request.max_tokens = 24 + id;
    request.params.temperature = id == 4 ? 0.0F : 0.6F + 0.2F * static_cast<float>(id);
    request.params.top_k = id % 2 == 0 ? 5 : 0;
    request.params.frequency_penalty = id == 5 ? 0.5F : 0.0F;
    request.params.seed = 100 + request.id;
    requests.push_back(request);
  }
  return requests;
}

TEST(Ratio, ARequestsTokensAreItsOwn) {
  const SmallPair models;
  RigOptions options = small_options(models.target);
  options.config.speculative_config = by_ratio(test::draft_model_config(models.drafter, 3));
  expect_own_tokens(options, random_requests(8));
}

// A draft model's keys and values of a cached prefix are those that it would compute.
TEST(Ratio, ARequestsTokensBehindACachedPrefix) {
  const SmallPair models;
  RigOptions options = small_options(models.target);
  options.config.enable_prefix_caching = true;
  options.config.speculative_config = by_ratio(test::draft_model_config(models.drafter, 3));
  ModelRig rig(options);
  Request request = random_requests(8).back();
  rig.add(request);
  rig.run();
  request.id = 100;
  rig.add(request);
  rig.run();
  EXPECT_GT(rig.scheduler().stats().num_prefix_hit_tokens, 0);
  EXPECT_EQ(rig.results().at(100).tokens, rig.results().at(6).tokens);
}

// Towards the few tokens that heads of tests draft.
std::vector<Request> biased_requests() {
  std::vector<Request> requests = random_requests(90);
  const Request biased = test::head_request(1, 1, 1);
  for (Request& request : requests) {
    request.token_lists = biased.token_lists;
    request.params.flags = biased.params.flags;
  }
  return requests;
}

TEST(Ratio, ARequestsTokensWithAHeadAreItsOwn) {
  for (const HeadFormat format : {HeadFormat::kEagle3, HeadFormat::kEagle}) {
    const HeadFiles head(format, format == HeadFormat::kEagle ? 0 : 8);
    RigOptions options = test::head_target_options();
    options.config.speculative_config =
        by_ratio(test::head_config(head.method(), head.dir.path().string(), 3));
    expect_own_tokens(options, biased_requests());
  }
}

TEST(Ratio, ARequestsTokensWithTheModelsOwnLayerAreItsOwn) {
  const test::MtpFiles files(test::MtpFamily::kGlm4Moe);
  RigOptions options = test::mtp_target_options(files);
  options.config.speculative_config = by_ratio(test::mtp_config(3));
  expect_own_tokens(options, biased_requests());
}

// p and q are the same bits: nothing is rejected but what lies behind a request's end. Match accepts far less.
TEST(Ratio, DraftsOfTheModelItselfAreAccepted) {
  const auto accepted = [](bool ratio) {
    RigOptions options = small_options(tiny_model());
    const std::string config = test::draft_model_config(tiny_model(), 3);
    options.config.speculative_config = ratio ? by_ratio(config) : config;
    ModelRig rig(options);
    for (Request request : random_requests(128)) {
      request.params.temperature = 0.9F;
      request.params.frequency_penalty = 0.0F;
      request.max_tokens = 80;
      rig.add(request);
    }
    rig.run();
    const SchedulerStats stats = rig.scheduler().stats();
    return static_cast<double>(stats.num_accepted_tokens) /
           static_cast<double>(stats.num_drafted_tokens - int64_t{6} * 2 * 3);
  };
  EXPECT_GE(accepted(true), 1.0);
  EXPECT_LT(accepted(false), 0.8);
}

// Rows that draw nothing: greedy ones, and those of n-grams, whose drafts are certain.
TEST(Ratio, AnswersWithoutDrawnDraftsAreThoseWithoutDrafts) {
  const SmallPair models;
  const auto run = [&](const std::string& config, float temperature) {
    RigOptions options = small_options(models.target);
    options.config.speculative_config = config;
    ModelRig rig(options);
    for (Request request : random_requests(8)) {
      request.params.temperature = temperature;
      rig.add(request);
    }
    std::map<uint64_t, Answer> answers;
    for (const auto& [id, result] : rig.run()) {
      answers[id] = result.tokens;
    }
    EXPECT_EQ(rig.scheduler().stats().num_accepted_tokens > 0, !config.empty());
    return answers;
  };
  EXPECT_EQ(run(by_ratio(test::draft_model_config(models.drafter, 3)), 0.0F), run("", 0.0F));
  EXPECT_EQ(run(by_ratio(test::ngram_config(3)), 0.8F), run("", 0.8F));
  EXPECT_EQ(run(by_ratio(test::suffix_config(3)), 0.8F), run("", 0.8F));
  EXPECT_NE(run(by_ratio(test::draft_model_config(models.drafter, 3)), 0.8F), run("", 0.8F));
}

TEST(Ratio, ThePlanCountsTheDistributions) {
  RigOptions options = small_options(tiny_model());
  options.config.speculative_config = test::draft_model_config(tiny_model(), 3);
  const ModelPlan match = value_or_throw(plan_model(options.config, this_machine()));
  options.config.speculative_config = by_ratio(options.config.speculative_config);
  const ModelPlan ratio = value_or_throw(plan_model(options.config, this_machine()));
  EXPECT_GE(ratio.memory.workspace_bytes, match.memory.workspace_bytes + 8 * 3 * 128 * 4);
}

TEST(Ratio, ARowMustFitIntoAStep) {
  RigOptions options = small_options(tiny_model());
  options.config.speculative_config = by_ratio(test::draft_model_config(tiny_model(), 8));
  options.config.max_num_seqs = 1;
  options.config.max_num_batched_tokens = 8;
  const auto refused = plan_model(options.config, this_machine());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("num_speculative_tokens: 8 with the rejection_sample_method ratio needs "
                        "--max-num-batched-tokens of at least 9, not 8"));
}

}  // namespace
}  // namespace warprow
