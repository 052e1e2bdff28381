// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/sampling_fields.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string parse(const std::vector<std::string>& arguments, SamplingOptions& options) {
  FlagSet flags("generate", "", "");
  add_sampling_flags(flags, options);
  const Result<void> done = flags.parse(arguments);
  return done ? "" : done.error().message;
}

TEST(SamplingFlags, FillTheOptions) {
  SamplingOptions options;
  EXPECT_EQ(parse({"--temperature",
                   "0.5",
                   "--top-p=.9",
                   "--top-k",
                   "-1",
                   "--seed",
                   "-1",
                   "--max-tokens",
                   "7",
                   "--logprobs",
                   "0",
                   "--stop",
                   "a",
                   "--stop",
                   "",
                   "--stop-token-ids",
                   "2,198",
                   "--stop-token-ids",
                   "5",
                   "--ignore-eos",
                   "--no-skip-special-tokens",
                   "--min-p",
                   "1e-2",
                   "--allowed-token-ids",
                   "4,5",
                   "--bad-words",
                   "a b",
                   "--bad-words",
                   "c",
                   "--logit-bias",
                   "2=-5,198=1.5",
                   "--logit-bias",
                   "2=7"},
                  options),
            "");
  EXPECT_EQ(options.temperature, 0.5);
  EXPECT_EQ(options.top_p, 0.9);
  EXPECT_EQ(options.min_p, 0.01);
  EXPECT_EQ(options.top_k, -1);
  EXPECT_EQ(options.seed, -1);
  EXPECT_EQ(options.max_tokens, 7);
  EXPECT_EQ(options.logprobs, 0);
  EXPECT_THAT(options.stop, ElementsAre("a", ""));
  EXPECT_THAT(options.stop_token_ids, ElementsAre(2, 198, 5));
  EXPECT_EQ(options.allowed_token_ids, (std::vector<int64_t>{4, 5}));
  EXPECT_THAT(options.bad_words, ElementsAre("a b", "c"));
  EXPECT_EQ(options.logit_bias, (std::map<int64_t, double>{{2, 7}, {198, 1.5}}));
  EXPECT_TRUE(options.ignore_eos);
  EXPECT_FALSE(options.skip_special_tokens);
  EXPECT_FALSE(options.include_stop_str_in_output);
}

TEST(SamplingFlags, NothingGivenLeavesEverythingUnset) {
  SamplingOptions options;
  EXPECT_EQ(parse({}, options), "");
  EXPECT_FALSE(options.temperature);
  EXPECT_FALSE(options.max_tokens);
  EXPECT_FALSE(options.ignore_eos);
  EXPECT_TRUE(options.skip_special_tokens);
}

TEST(SamplingJson, HoldsWhatWasSet) {
  EXPECT_EQ(sampling_json({}), nlohmann::json::object());
  SamplingOptions options;
  EXPECT_EQ(parse({"--temperature",
                   "0",
                   "--stop",
                   "a",
                   "--logit-bias",
                   "3=1.5",
                   "--ignore-eos",
                   "--no-skip-special-tokens",
                   "--allowed-token-ids",
                   "7"},
                  options),
            "");
  EXPECT_EQ(sampling_json(options).dump(),
            R"({"allowed_token_ids":[7],"ignore_eos":true,"logit_bias":{"3":1.5},)"
            R"("skip_special_tokens":false,"stop":["a"],"temperature":0.0})");
}

TEST(SamplingFlags, MistakesNameTheFlagAndTheText) {
  SamplingOptions options;
  EXPECT_EQ(parse({"--temperature", "hot"}, options), "--temperature: 'hot' is not a number");
  EXPECT_EQ(parse({"--temperature", ""}, options), "--temperature: '' is not a number");
  EXPECT_EQ(parse({"--top-k", "1.5"}, options), "--top-k: '1.5' is not a whole number");
  EXPECT_EQ(parse({"--seed", "99999999999999999999"}, options),
            "--seed: '99999999999999999999' is not a whole number");
  EXPECT_THAT(parse({"--stop-token-ids", "1,,2"}, options), HasSubstr("--stop-token-ids: ''"));
  EXPECT_EQ(parse({"--logit-bias", "3"}, options), "--logit-bias: '3' is not of the form ID=BIAS");
  EXPECT_EQ(parse({"--logit-bias", "3=x"}, options), "--logit-bias: 'x' is not a number");
}

}  // namespace
}  // namespace warprow
