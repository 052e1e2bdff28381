// SPDX-License-Identifier: Apache-2.0
#include "config/speculation.h"

#include "config/resolve.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::HasSubstr;

EngineConfig with_json(const std::string& json) {
  EngineConfig config;
  config.speculative_config = json;
  return config;
}

Speculation read(const std::string& json) {
  const Result<Speculation> result = read_speculation(with_json(json));
  EXPECT_TRUE(result) << result.error().message;
  return result.value_or(Speculation());
}

std::string speculation_error(const EngineConfig& config) {
  const Result<Speculation> result = read_speculation(config);
  return result ? "" : result.error().message;
}
std::string speculation_error(const std::string& json) {
  return speculation_error(with_json(json));
}

HostFacts host_with_a_gpu() {
  return {.usable_cores = 1,
          .usable_memory_bytes = int64_t{4} << 30,
          .has_cuda = true,
          .compute_capability = 90};
}

// The error on a GPU of what a CPU takes.
std::string error_on_a_gpu(const std::string& json) {
  EngineConfig config = with_json(json);
  config.device = "cpu";
  EXPECT_TRUE(resolve(config, host_with_a_gpu()));
  config.device = "cuda";
  const Result<ResolvedConfig> result = resolve(config, host_with_a_gpu());
  return result ? "" : result.error().message;
}

TEST(Speculation, IsOffByDefault) {
  const Result<Speculation> result = read_speculation({});
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->is_on());
  EXPECT_EQ(result->num_drafts, 0);
}

TEST(Speculation, KeysOfVllm) {
  const Speculation speculation = read(
      R"({"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":2,"prompt_lookup_max":4})");
  EXPECT_EQ(speculation.method, Speculation::Method::kNgram);
  EXPECT_EQ(speculation.num_drafts, 3);
  EXPECT_EQ(speculation.prompt_lookup_min, 2);
  EXPECT_EQ(speculation.prompt_lookup_max, 4);
  EXPECT_TRUE(speculation.adaptive);
}

TEST(Speculation, DefaultsOfTheLookupAreVllms) {
  const auto range = [](const std::string& keys) {
    const Speculation s = read(R"({"method":"ngram")" + keys + "}");
    return std::pair(s.prompt_lookup_min, s.prompt_lookup_max);
  };
  EXPECT_EQ(range(""), std::pair(5, 5));
  EXPECT_EQ(range(R"(,"prompt_lookup_max":3)"), std::pair(3, 3)) << "the other end follows";
  EXPECT_EQ(range(R"(,"prompt_lookup_min":7)"), std::pair(7, 7));
  EXPECT_EQ(range(R"(,"prompt_lookup_min":1,"prompt_lookup_max":null)"), std::pair(1, 1));
}

TEST(Speculation, SuffixDecodingHasVllmsKeysAndDefaults) {
  const Speculation plain = read(R"({"method":"suffix"})");
  EXPECT_EQ(plain.method, Speculation::Method::kSuffix);
  EXPECT_EQ(plain.num_drafts, 16) << "vLLM: the depth of the tree, 24; here at most 16";
  EXPECT_EQ(plain.suffix.max_tree_depth, 24);
  EXPECT_EQ(plain.suffix.max_cached_requests, 10000);
  EXPECT_EQ(plain.suffix.max_spec_factor, 1.0);
  EXPECT_EQ(plain.suffix.min_token_prob, 0.1);
  const Speculation all = read(
      R"({"method":"suffix","suffix_decoding_max_tree_depth":8,"suffix_decoding_max_cached_requests":0,)"
      R"("suffix_decoding_max_spec_factor":2,"suffix_decoding_min_token_prob":0.5})");
  EXPECT_EQ(all.num_drafts, 8);
  EXPECT_EQ(all.suffix.max_tree_depth, 8);
  EXPECT_EQ(all.suffix.max_cached_requests, 0);
  EXPECT_EQ(all.suffix.max_spec_factor, 2.0);
  EXPECT_EQ(all.suffix.min_token_prob, 0.5);
  EXPECT_EQ(read(R"({"method":"suffix","num_speculative_tokens":3})").num_drafts, 3);
}

TEST(Speculation, LimitsOfSuffixDecoding) {
  const auto with = [](const std::string& key, const std::string& value) {
    return speculation_error(R"({"method":"suffix","suffix_decoding_)" + key + "\":" + value + "}");
  };
  for (const std::string value : {"1", "65", "2.5", R"("8")"}) {
    EXPECT_THAT(with("max_tree_depth", value),
                HasSubstr("suffix_decoding_max_tree_depth: " + value +
                          " is not a whole number from 2 to 64"));
  }
  EXPECT_THAT(with("max_cached_requests", "-1"),
              HasSubstr("max_cached_requests: -1 is not a whole number from 0 to 1000000"));
  for (const std::string value : {"-0.5", "65", "true"}) {
    EXPECT_THAT(with("max_spec_factor", value),
                HasSubstr("max_spec_factor: " + value + " is not a number from 0 to 64"));
  }
  EXPECT_THAT(with("min_token_prob", "1.5"), HasSubstr("1.5 is not a number from 0 to 1"));
  EXPECT_THAT(speculation_error(R"({"method":"ngram","suffix_decoding_min_token_prob":0.2})"),
              HasSubstr("suffix_decoding_min_token_prob has no use with the method ngram"));
  EXPECT_THAT(speculation_error(R"({"method":"suffix","prompt_lookup_max":3})"),
              HasSubstr("prompt_lookup_max have no use with the method suffix"));
}

TEST(Speculation, SuffixDecodingIsRefusedOnAGpu) {
  EXPECT_THAT(error_on_a_gpu(R"({"method":"suffix"})"),
              HasSubstr("the method suffix is not supported on a GPU"));
}

// How many drafts the adaptive rule gives a row depends on the batch. By ratio, the row's tokens depend on that number.
TEST(Speculation, VerificationByRatioFixesTheNumberOfDrafts) {
  const auto read = [](const std::string& more) {
    return *read_speculation(with_json(
        R"({"method":"draft_model","model":"x","rejection_sample_method":"ratio")" + more + "}"));
  };
  const Speculation fixed = read("");
  EXPECT_TRUE(fixed.ratio);
  EXPECT_FALSE(fixed.adaptive);
  EXPECT_TRUE(fixed.whole_drafts());
  const Speculation adaptive = read(R"(,"adaptive":true)");
  EXPECT_TRUE(adaptive.ratio);
  EXPECT_TRUE(adaptive.adaptive);
  EXPECT_FALSE(adaptive.whole_drafts());
  const Speculation match =
      *read_speculation(with_json(R"({"method":"draft_model","model":"x","adaptive":false})"));
  EXPECT_FALSE(match.ratio);
  EXPECT_FALSE(match.whole_drafts());
}

// Drafts that are not drawn are certain: q is 1. Match accepts them with probability p, and draws from the rest of p else.
TEST(Speculation, MatchIsTheVerificationByRatioOfCertainDrafts) {
  for (const char* method : {"ngram", "suffix"}) {
    const Speculation speculation = *read_speculation(with_json(
        R"({"rejection_sample_method":"ratio","method":")" + std::string(method) + R"("})"));
    EXPECT_FALSE(speculation.ratio);
    EXPECT_TRUE(speculation.adaptive);
  }
}

TEST(Speculation, MethodAndCountAsFlags) {
  EngineConfig config;
  config.spec_method = "ngram";
  EXPECT_EQ(read_speculation(config)->num_drafts, 4);
  config.num_speculative_tokens = 7;
  EXPECT_EQ(read_speculation(config)->num_drafts, 7);
  config.speculative_config = R"({"method":"ngram","adaptive":false})";
  EXPECT_EQ(read_speculation(config)->num_drafts, 7) << "together with the object";
  EXPECT_FALSE(read_speculation(config)->adaptive);
}

// Also by vLLM's older names for each family.
TEST(Speculation, TheModelsOwnLayerNeedsNoModel) {
  for (const std::string name : {"mtp", "glm4_moe_mtp", "qwen3_next_mtp", "qwen3_5_mtp"}) {
    const auto read = read_speculation(with_json(R"({"method":")" + name + R"("})"));
    ASSERT_TRUE(read) << name;
    EXPECT_EQ(read->method, Speculation::Method::kMtp);
    EXPECT_TRUE(read->has_head());
    EXPECT_FALSE(read->has_files());
    EXPECT_EQ(read->lookahead(), read->num_drafts);
  }
  EngineConfig config;
  config.spec_method = "mtp";
  config.num_speculative_tokens = 3;
  EXPECT_EQ(read_speculation(config)->num_drafts, 3);
  config.speculative_config = R"({"method":"qwen3_next_mtp"})";
  EXPECT_EQ(speculation_error(config), "") << "the same method";
  EXPECT_THAT(speculation_error(R"({"method":"mtp","model":"x"})"),
              HasSubstr("model: 'x' has no use with the method mtp"));
  EXPECT_THAT(speculation_error(R"({"method":"mtp","num_speculative_tokens":13})"),
              HasSubstr("num_speculative_tokens: 13 is above 12"));
}

TEST(Speculation, ErrorsNameKeyValueAndWhatIsAllowed) {
  EXPECT_THAT(speculation_error("ngram"),
              HasSubstr("--speculative-config: 'ngram' is not a JSON object"));
  EXPECT_THAT(speculation_error("[1]"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(speculation_error(R"({"method":"medusa"})"),
              HasSubstr("method 'medusa' is not supported; the methods are ngram"));
  EXPECT_THAT(speculation_error(R"({"method":"eagle3"})"),
              HasSubstr("model is missing; the method eagle3 needs the name of a head"));
  EXPECT_THAT(speculation_error(R"({"method":"eagle","model":"x","num_speculative_tokens":13})"),
              HasSubstr("num_speculative_tokens: 13 is above 12"));
  EXPECT_THAT(
      speculation_error(R"({"method":"ngram","rejection_sample_method":"block"})"),
      HasSubstr(
          "rejection_sample_method: \"block\" is not supported; match, ratio and synthetic are"));
  EXPECT_THAT(speculation_error(R"({"method":"ngram","rejection_sample_method":"synthetic"})"),
              HasSubstr("synthetic needs a rate above 0"));
  EXPECT_THAT(speculation_error(R"({"method":"ngram","synthetic_acceptance_rate":0.5})"),
              HasSubstr("synthetic_acceptance_rate: 0.5 with the rejection_sample_method match"));
  EXPECT_THAT(speculation_error(R"({"method":3})"), HasSubstr("method: 3 is not a string"));
  EXPECT_THAT(speculation_error("{}"), HasSubstr("method is missing; the methods are ngram"));
  EXPECT_THAT(speculation_error(R"({"method":"ngram","tree":1})"),
              HasSubstr("tree: 1 is not supported; the keys are method, num_spec"));
  EXPECT_THAT(speculation_error(R"({"method":"draft_model"})"), HasSubstr("model is missing"));
  EXPECT_THAT(speculation_error(R"({"model":""})"),
              HasSubstr("model: \"\" is not the name of a model"));
  EXPECT_THAT(speculation_error(R"({"model":"x","num_speculative_tokens":13})"),
              HasSubstr("num_speculative_tokens: 13 is above 12"));
  EXPECT_THAT(speculation_error(R"({"model":"x","prompt_lookup_min":2})"),
              HasSubstr("have no use with the method draft_model"));
  EXPECT_THAT(speculation_error(R"({"model":"x","draft_tensor_parallel_size":2})"),
              HasSubstr("draft_tensor_parallel_size: 2 is neither 1 nor the "
                        "--tensor-parallel-size of 1"));
  EXPECT_THAT(speculation_error(R"({"model":"x","draft_tensor_parallel_size":0})"),
              HasSubstr("draft_tensor_parallel_size: 0 is not a whole number from 1"));
  EXPECT_THAT(speculation_error(R"({"method":"ngram","model":"x/y"})"),
              HasSubstr("model: 'x/y' has no use with the method ngram"));
  for (const std::string value :
       {"0", "17", "-1", "2.5", R"("3")", "true", "99999999999999999999"}) {
    EXPECT_THAT(speculation_error(R"({"method":"ngram","num_speculative_tokens":)" + value + "}"),
                HasSubstr("is not a whole number from 1 to 16"));
  }
  EXPECT_THAT(
      speculation_error(R"({"method":"ngram","prompt_lookup_min":4,"prompt_lookup_max":3})"),
      HasSubstr("prompt_lookup_min: 4 is above prompt_lookup_max 3"));
  EXPECT_THAT(speculation_error(R"({"method":"ngram","adaptive":1})"),
              HasSubstr("adaptive: 1 is neither true nor false"));
}

TEST(Speculation, SettingsThatContradictEachOther) {
  EngineConfig config = with_json(R"({"method":"ngram","num_speculative_tokens":2})");
  config.num_speculative_tokens = 3;
  EXPECT_THAT(speculation_error(config),
              HasSubstr("--num-speculative-tokens: 3 contradicts the 2"));
  config.num_speculative_tokens = 2;
  EXPECT_EQ(speculation_error(config), "");
  config = with_json(R"({"method":"eagle"})");
  config.spec_method = "ngram";
  EXPECT_THAT(speculation_error(config),
              HasSubstr("--spec-method: 'ngram' contradicts the method 'eagle'"));
  config = {};
  config.num_speculative_tokens = 3;
  EXPECT_THAT(speculation_error(config),
              HasSubstr("--num-speculative-tokens: 3 needs --spec-method"));
}

TEST(Speculation, EachDeviceHasItsRuleOfTheLength) {
  EngineConfig config = with_json(R"({"method":"ngram"})");
  config.device = "cuda";
  const HostFacts host = host_with_a_gpu();
  ASSERT_TRUE(resolve(config, host));
  EXPECT_GT(resolve(config, host)->draft_knee, 0);
  EXPECT_EQ(resolve(config, host)->draft_cost, 0);
  config.device = "cpu";
  ASSERT_TRUE(resolve(config, host));
  EXPECT_GT(resolve(config, host)->draft_cost, 0);
  EXPECT_EQ(resolve(config, host)->draft_knee, 0);
  config.speculative_config = R"({"method":"ngram","adaptive":false})";
  EXPECT_EQ(resolve(config, host)->draft_cost, 0);
}

}  // namespace
}  // namespace warprow
