// SPDX-License-Identifier: Apache-2.0
#include "engine/validate.h"

#include "wire/token_lists.h"

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

RequestLimits limits() {
  RequestLimits limits;
  limits.vocab_size = 100;
  limits.max_model_len = 50;
  limits.eos_token_ids = {1, 2};
  limits.has_priorities = true;
  return limits;
}

using Edit = std::function<void(GenerationRequest&)>;
Edit option(const std::function<void(SamplingOptions&)>& set) {
  return [set](GenerationRequest& request) { set(request.sampling); };
}

Result<ValidRequest> validate(const Edit& edit, std::vector<TokenId> prompt = {5, 6, 7}) {
  GenerationRequest request;
  edit(request);
  return validate_request(request, std::move(prompt), limits());
}

RequestFields valid(const Edit& edit) { return value_or_throw(validate(edit)).fields(); }

TEST(Validate, DefaultsAreVllms) {
  const RequestFields fields = valid([](GenerationRequest&) {});
  EXPECT_EQ(fields.params.temperature, 1.0F);
  EXPECT_EQ(fields.params.top_p, 1.0F);
  EXPECT_EQ(fields.params.top_k, 0);
  EXPECT_EQ(fields.params.min_p, 0.0F);
  EXPECT_EQ(fields.params.num_logprobs, -1);
  EXPECT_EQ(fields.seed, std::nullopt);
  EXPECT_EQ(fields.max_tokens, 47);
  EXPECT_EQ(fields.eos_token_ids, (std::vector<TokenId>{1, 2}));
  EXPECT_TRUE(fields.skip_special_tokens);
  EXPECT_FALSE(fields.include_stop_str_in_output);
  EXPECT_EQ(fields.cache_salt, 0U);
  EXPECT_EQ(fields.prompt_token_ids, (std::vector<TokenId>{5, 6, 7}));
}

TEST(Validate, TheModelsDefaultsFillWhatIsUnset) {
  RequestLimits with_defaults = limits();
  with_defaults.defaults.temperature = 0.5;
  with_defaults.defaults.top_p = 0.25;
  with_defaults.defaults.top_k = 20;
  with_defaults.defaults.min_p = 0.125;
  with_defaults.defaults.max_tokens = 9;
  with_defaults.defaults.repetition_penalty = 1.5;
  GenerationRequest request;
  RequestFields fields = value_or_throw(validate_request(request, {5}, with_defaults)).fields();
  EXPECT_EQ(fields.params.temperature, 0.5F);
  EXPECT_EQ(fields.params.top_p, 0.25F);
  EXPECT_EQ(fields.params.top_k, 20);
  EXPECT_EQ(fields.params.min_p, 0.125F);
  EXPECT_EQ(fields.max_tokens, 9);
  EXPECT_EQ(fields.params.repetition_penalty, 1.5F);
  request.sampling.temperature = 2;
  request.sampling.top_k = -1;
  fields = value_or_throw(validate_request(request, {5}, with_defaults)).fields();
  EXPECT_EQ(fields.params.temperature, 2.0F);
  EXPECT_EQ(fields.params.top_k, 0);
  EXPECT_EQ(fields.params.top_p, 0.25F);

  with_defaults.defaults.top_p = 7;
  const Result<ValidRequest> refused = validate_request(request, {5}, with_defaults);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "top_p of the model's generation config: 7 is outside (0, 1]");
}

struct GoodEdge {
  const char* name;
  Edit edit;
};

TEST(Validate, AcceptsTheEdges) {
  const GoodEdge cases[] = {
      {"temperature 0", option([](auto& o) { o.temperature = 0; })},
      {"temperature 2", option([](auto& o) { o.temperature = 2; })},
      {"top_p 1", option([](auto& o) { o.top_p = 1; })},
      {"top_p tiny", option([](auto& o) { o.top_p = 1e-300; })},
      {"top_k -1", option([](auto& o) { o.top_k = -1; })},
      {"top_k huge", option([](auto& o) { o.top_k = std::numeric_limits<int64_t>::max(); })},
      {"min_p 0", option([](auto& o) { o.min_p = 0; })},
      {"min_p 1", option([](auto& o) { o.min_p = 1; })},
      {"seed -1", option([](auto& o) { o.seed = -1; })},
      {"seed lowest", option([](auto& o) { o.seed = std::numeric_limits<int64_t>::min(); })},
      {"max_tokens 1", option([](auto& o) { o.max_tokens = 1; })},
      {"max_tokens huge",
       option([](auto& o) { o.max_tokens = std::numeric_limits<int64_t>::max(); })},
      {"min_tokens 0", option([](auto& o) { o.min_tokens = 0; })},
      {"n 1", option([](auto& o) { o.n = 1; })},
      {"n 128", option([](auto& o) { o.n = 128; })},
      {"logprobs 0", option([](auto& o) { o.logprobs = 0; })},
      {"logprobs 20", option([](auto& o) { o.logprobs = 20; })},
      {"penalties low", option([](auto& o) {
         o.repetition_penalty = 1e-300;
         o.frequency_penalty = -2;
         o.presence_penalty = -2;
       })},
      {"penalties high", option([](auto& o) {
         o.repetition_penalty = 1e300;
         o.frequency_penalty = 2;
         o.presence_penalty = 2;
       })},
      {"stop", option([](auto& o) { o.stop = {"x", " "}; })},
      {"stop_token_ids", option([](auto& o) { o.stop_token_ids = {0, 99}; })},
      {"allowed_token_ids", option([](auto& o) { o.allowed_token_ids = {{0, 99}}; })},
      {"logit_bias", option([](auto& o) { o.logit_bias = {{0, -1e300}, {99, 1e300}}; })},
  };
  for (const GoodEdge& c : cases) {
    const Result<ValidRequest> result = validate(c.edit);
    EXPECT_TRUE(result.has_value()) << c.name << ": " << (result ? "" : result.error().message);
  }
}

struct BadEdge {
  const char* message;
  Edit edit;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

TEST(Validate, RefusesBeyondTheEdgesAndSaysWhy) {
  const BadEdge cases[] = {
      {"temperature: -0.001 is outside [0, 2]", option([](auto& o) { o.temperature = -0.001; })},
      {"temperature: 2.001 is outside [0, 2]", option([](auto& o) { o.temperature = 2.001; })},
      {"temperature: nan is outside [0, 2]", option([](auto& o) { o.temperature = kNan; })},
      {"temperature: inf is outside [0, 2]", option([](auto& o) { o.temperature = kInf; })},
      {"top_p: 0 is outside (0, 1]", option([](auto& o) { o.top_p = 0; })},
      {"top_p: 1.01 is outside (0, 1]", option([](auto& o) { o.top_p = 1.01; })},
      {"top_k: -2 must be -1 or more", option([](auto& o) { o.top_k = -2; })},
      {"min_p: -0.5 is outside [0, 1]", option([](auto& o) { o.min_p = -0.5; })},
      {"min_p: 1.5 is outside [0, 1]", option([](auto& o) { o.min_p = 1.5; })},
      {"max_tokens: 0 must be 1 or more", option([](auto& o) { o.max_tokens = 0; })},
      {"max_tokens: -5 must be 1 or more", option([](auto& o) { o.max_tokens = -5; })},
      {"logprobs: -1 is outside [0, 20]", option([](auto& o) { o.logprobs = -1; })},
      {"logprobs: 21 is outside [0, 20]", option([](auto& o) { o.logprobs = 21; })},
      {"n: 0 is outside [1, 128]", option([](auto& o) { o.n = 0; })},
      {"n: 129 is outside [1, 128]", option([](auto& o) { o.n = 129; })},
      {"n: 2 must be 1 when sampling is greedy (temperature below 1e-05)", option([](auto& o) {
         o.n = 2;
         o.temperature = 0;
       })},
      {"stop: string 1 is empty, must have 1 character or more",
       option([](auto& o) { o.stop = {"a", ""}; })},
      {"stop_token_ids: 100 is outside the vocabulary [0, 99]",
       option([](auto& o) { o.stop_token_ids = {3, 100}; })},
      {"stop_token_ids: -1 is outside the vocabulary [0, 99]",
       option([](auto& o) { o.stop_token_ids = {-1}; })},
      {"repetition_penalty: 0 is outside (0, inf)",
       option([](auto& o) { o.repetition_penalty = 0; })},
      {"repetition_penalty: -1 is outside (0, inf)",
       option([](auto& o) { o.repetition_penalty = -1; })},
      {"repetition_penalty: inf is outside (0, inf)",
       option([](auto& o) { o.repetition_penalty = kInf; })},
      {"frequency_penalty: 2.01 is outside [-2, 2]",
       option([](auto& o) { o.frequency_penalty = 2.01; })},
      {"frequency_penalty: nan is outside [-2, 2]",
       option([](auto& o) { o.frequency_penalty = kNan; })},
      {"presence_penalty: -2.5 is outside [-2, 2]",
       option([](auto& o) { o.presence_penalty = -2.5; })},
      {"allowed_token_ids: 0 ids, must be 1 or more",
       option([](auto& o) { o.allowed_token_ids.emplace(); })},
      {"allowed_token_ids: 100 is outside the vocabulary [0, 99]",
       option([](auto& o) { o.allowed_token_ids = {{3, 100}}; })},
      {"logit_bias: -1 is outside the vocabulary [0, 99]",
       option([](auto& o) { o.logit_bias = {{-1, 2}}; })},
      {"logit_bias: nan of token 3 is not finite",
       option([](auto& o) { o.logit_bias = {{3, kNan}}; })},
      {"bad_words: string 1 is blank, must have 1 visible character or more",
       option([](auto& o) { o.bad_words = {"a", " \t"}; })},
      {"min_tokens: -1 is outside [0, 47]", option([](auto& o) { o.min_tokens = -1; })},
      {"min_tokens: 4 is outside [0, 3]", option([](auto& o) {
         o.min_tokens = 4;
         o.max_tokens = 3;
       })},
  };
  for (const BadEdge& c : cases) {
    const Result<ValidRequest> result = validate(c.edit);
    ASSERT_FALSE(result.has_value()) << c.message;
    EXPECT_EQ(result.error().message, c.message);
    EXPECT_EQ(result.error().code, c.code) << c.message;
  }
}

TEST(Validate, PromptMustFitAndBeInTheVocabulary) {
  const Edit nothing = [](GenerationRequest&) {};
  EXPECT_EQ(validate(nothing, {}).error().message, "prompt: 0 tokens, must be 1 or more");
  EXPECT_TRUE(validate(nothing, std::vector<TokenId>(49, 3)).has_value());
  EXPECT_THAT(
      validate(nothing, std::vector<TokenId>(50, 3)).error().message,
      AllOf(HasSubstr("prompt: 50 tokens"), HasSubstr("maximum context length of 50 tokens")));
  EXPECT_EQ(validate(nothing, {3, 100}).error().message,
            "prompt: token id 100 at position 1 is outside the vocabulary [0, 99]");
  EXPECT_EQ(validate(nothing, {-1}).error().message,
            "prompt: token id -1 at position 0 is outside the vocabulary [0, 99]");
}

TEST(Validate, MaxTokensIsCutToTheContext) {
  EXPECT_EQ(valid(option([](auto& o) { o.max_tokens = 46; })).max_tokens, 46);
  EXPECT_EQ(valid(option([](auto& o) { o.max_tokens = 48; })).max_tokens, 47);
  const Edit nothing = [](GenerationRequest&) {};
  EXPECT_EQ(value_or_throw(validate(nothing, std::vector<TokenId>(49, 3))).fields().max_tokens, 1);
}

TEST(Validate, GreedyBelowTheThresholdOnly) {
  const auto params = [](double temperature) {
    return valid(option([=](auto& o) {
             o.temperature = temperature;
             o.top_k = 5;
             o.top_p = 0.5;
             o.min_p = 0.25;
           }))
        .params;
  };
  for (const double t : {0.0, 9e-6}) {
    EXPECT_TRUE(params(t).is_greedy()) << t;
    EXPECT_EQ(params(t), SamplingParams{}) << t;
  }
  EXPECT_FALSE(params(1e-5).is_greedy());
  EXPECT_EQ(params(1e-5).top_k, 5);
  EXPECT_EQ(params(1).top_p, 0.5F);
  EXPECT_EQ(params(1).min_p, 0.25F);
}

TEST(Validate, PenaltiesHoldForGreedyRowsToo) {
  for (const double temperature : {0.0, 1.0}) {
    const SamplingParams params = valid(option([=](auto& o) {
                                    o.temperature = temperature;
                                    o.repetition_penalty = 1.25;
                                    o.frequency_penalty = -0.5;
                                    o.presence_penalty = 2;
                                  })).params;
    EXPECT_EQ(params.repetition_penalty, 1.25F);
    EXPECT_EQ(params.frequency_penalty, -0.5F);
    EXPECT_EQ(params.presence_penalty, 2.0F);
  }
  const auto repetition = [](double value) {
    return valid(option([=](auto& o) { o.repetition_penalty = value; })).params.repetition_penalty;
  };
  EXPECT_EQ(repetition(1e-300), 1e-30F);
  EXPECT_EQ(repetition(1e300), 1e30F);
}

TEST(Validate, MinTokensHoldBackUpTo128Ids) {
  EXPECT_EQ(valid(option([](auto& o) { o.min_tokens = 47; })).params.min_tokens, 47);
  GenerationRequest request;
  request.sampling.min_tokens = 1;
  for (int64_t id = 0; id < 127; ++id) {
    request.sampling.stop_token_ids.push_back(id);
  }
  RequestLimits wide = limits();  // both ids are EOS
  wide.vocab_size = 1000;
  EXPECT_EQ(validate_request(request, {5}, wide).error().message,
            "stop_token_ids: 129 ids, end of sequence included, are more than the 128 that "
            "min_tokens can hold back");
  request.sampling.stop_token_ids.pop_back();
  EXPECT_TRUE(validate_request(request, {5}, wide).has_value());
  for (int64_t id = 200; id < 500; ++id) {
    request.sampling.stop_token_ids.push_back(id);
  }
  request.sampling.min_tokens = 0;
  EXPECT_TRUE(validate_request(request, {5}, wide).has_value());
}

TEST(Validate, TokenListsAreCheckedCutAndPacked) {
  GenerationRequest request;
  request.sampling.allowed_token_ids = {{7, 3, 7}};
  request.sampling.logit_bias = {{9, 200}, {4, -0.5}};
  request.sampling.bad_words = {"x", "yz"};
  const auto validated = [&](std::vector<std::vector<TokenId>> words) {
    return validate_request(request, {5}, limits(), std::move(words));
  };
  const RequestFields fields = value_or_throw(validated({{1}, {2, 8}})).fields();
  EXPECT_TRUE(fields.params.has_token_lists());
  EXPECT_EQ(fields.token_lists,
            (std::vector<int32_t>{2,
                                  2,
                                  5,
                                  0,
                                  3,
                                  7,
                                  4,
                                  std::bit_cast<int32_t>(-0.5F),
                                  9,
                                  std::bit_cast<int32_t>(100.0F),
                                  1,
                                  1,
                                  2,
                                  2,
                                  8}));
  EXPECT_EQ(validated({{1}, {2, 100}}).error().message,
            "bad_words: 100 is outside the vocabulary [0, 99]");
  EXPECT_EQ(validated({{1}, {}}).error().message, "bad_words: a string has no tokens");
  EXPECT_FALSE(valid([](GenerationRequest&) {}).params.has_token_lists());
}

TEST(Validate, TokenListsHaveALimit) {
  RequestLimits wide = limits();
  wide.vocab_size = 10000;
  GenerationRequest request;
  std::vector<int64_t>& allowed = request.sampling.allowed_token_ids.emplace();
  for (int64_t id = 0; id < kMaxTokenListWords; ++id) {
    allowed.push_back(id);
  }
  EXPECT_TRUE(validate_request(request, {5}, wide));
  request.sampling.logit_bias = {{1, 1}};
  EXPECT_EQ(
      validate_request(request, {5}, wide).error().message,
      "allowed_token_ids: the request's token lists take 4354 words, more than the 4352 of a "
      "row (1 for an allowed id, 2 for a bias, 1 for a bad word and each of its tokens, 1 for "
      "each of logprob_token_ids)");
}

TEST(Validate, TheEngineSaysHowManyLogprobs) {
  GenerationRequest request;
  RequestLimits some = limits();
  some.max_logprobs = 3;
  const auto refused = [&] { return validate_request(request, {5}, some).error().message; };
  request.sampling.logprobs = 4;
  EXPECT_EQ(refused(), "logprobs: 4 is outside [0, 3]");
  request.sampling.logprobs = 3;
  request.sampling.prompt_logprobs = 4;
  EXPECT_EQ(refused(), "prompt_logprobs: 4 is outside [0, 3]");
  request.sampling.prompt_logprobs = 20;
  some.max_logprobs = -1;
  for (const auto& [given, wanted] : {std::pair(-1, 100), std::pair(100, 100), std::pair(0, 0)}) {
    request.sampling.logprobs = given;
    EXPECT_EQ(value_or_throw(validate_request(request, {5}, some)).fields().params.num_logprobs,
              wanted);
  }
  request.sampling.logprobs = 101;
  EXPECT_EQ(refused(), "logprobs: 101 is outside [-1, 100]");
  request.sampling.logprobs = -1;
  request.sampling.logprob_token_ids = {{7}};
  EXPECT_EQ(refused(),
            "logprobs: -1 with logprob_token_ids, which name the tokens; must be 0 or unset");
  request.sampling.logprob_token_ids.reset();
  request.sampling.prompt_logprobs = 21;
  EXPECT_EQ(refused(), "prompt_logprobs: 21 is outside [0, 20]");
}

TEST(Validate, LogprobsOfNamedTokens) {
  GenerationRequest request;
  request.sampling.logprob_token_ids = {{7, 3, 7}};
  const RequestFields fields = value_or_throw(validate_request(request, {5}, limits())).fields();
  EXPECT_TRUE(fields.params.has_lists());
  EXPECT_FALSE(fields.params.has_token_lists());
  EXPECT_EQ(fields.params.num_logprobs, 3);
  EXPECT_EQ(fields.token_lists, (std::vector<int32_t>{0, 0, 0, 3, 7, 3, 7}));
  const auto refused = [&request] {
    return validate_request(request, {5}, limits()).error().message;
  };
  request.sampling.logprobs = 0;
  EXPECT_TRUE(validate_request(request, {5}, limits()));
  request.sampling.logprobs = 2;
  EXPECT_EQ(refused(),
            "logprobs: 2 with logprob_token_ids, which name the tokens; must be 0 or unset");
  request.sampling.logprobs.reset();
  request.sampling.logprob_token_ids = {{7, 100}};
  EXPECT_EQ(refused(), "logprob_token_ids: 100 is outside the vocabulary [0, 99]");
  request.sampling.logprob_token_ids = std::vector<int64_t>(129, 1);
  EXPECT_EQ(refused(), "logprob_token_ids: 129 ids, must be 1 to 128");
  request.sampling.logprob_token_ids.emplace();
  EXPECT_EQ(refused(), "logprob_token_ids: 0 ids, must be 1 to 128");
}

TEST(Validate, PromptLogprobsComeWithTheFirstChoice) {
  GenerationRequest request;
  request.sampling.prompt_logprobs = 21;
  EXPECT_EQ(validate_request(request, {5}, limits()).error().message,
            "prompt_logprobs: 21 is outside [0, 20]");
  request.sampling.prompt_logprobs = 4;
  request.sampling.n = 2;
  const ValidRequest both = value_or_throw(validate_request(request, {5}, limits()));
  const std::vector<ValidRequest> choices = split_choices(both);
  EXPECT_EQ(choices[0].fields().params.num_prompt_logprobs, 4);
  EXPECT_EQ(choices[1].fields().params.num_prompt_logprobs, -1);
}

TEST(Validate, VectorsOfAPrompt) {
  const auto vectors = [](int32_t width, std::vector<float> values) {
    return std::make_shared<const EmbeddingVectors>(EmbeddingVectors{width, std::move(values)});
  };
  RequestLimits with = limits();
  const auto validate =
      [&](std::vector<TokenId> ids, PromptEmbeds embeds, GenerationRequest request = {}) {
        return validate_request(request, std::move(ids), with, {}, {}, std::move(embeds));
      };
  const auto refusal = [&](std::vector<TokenId> ids, PromptEmbeds embeds) {
    const Result<ValidRequest> valid = validate(std::move(ids), std::move(embeds));
    return valid ? std::string("valid") : valid.error().message;
  };
  EXPECT_EQ(refusal({-1, 5}, vectors(2, {1, 2})),
            "prompt_embeds: the engine was started without --enable-prompt-embeds");
  with.prompt_embeds_width = 2;
  EXPECT_EQ(refusal({-1, 5, -1}, vectors(2, {1, 2, 3, 4})), "valid");
  EXPECT_EQ(refusal({-1, 5}, nullptr),
            fmt::format("prompt: token id -1 at position 0 is outside the vocabulary [0, {}]",
                        with.vocab_size - 1));
  EXPECT_EQ(refusal({-1, -2}, vectors(2, {1, 2})),
            fmt::format("prompt: token id -2 at position 1 is outside the vocabulary [0, {}]",
                        with.vocab_size - 1));
  EXPECT_EQ(refusal({-1}, vectors(3, {1, 2, 3})),
            "prompt_embeds: vectors of 3 numbers, must have 2, the model's hidden size");
  EXPECT_EQ(refusal({-1, 5}, vectors(2, {1, 2, 3, 4})),
            "prompt_embeds: 2 vectors for 1 places (-1) in the prompt");
  EXPECT_EQ(refusal({-1, -1}, vectors(2, {1, 2, 3, std::numeric_limits<float>::infinity()})),
            "prompt_embeds: inf in vector 1, must be a finite number");
  GenerationRequest scored;
  scored.sampling.prompt_logprobs = 1;
  EXPECT_THAT(validate({-1}, vectors(2, {1, 2}), scored).error().message,
              HasSubstr("prompt_logprobs: a prompt with prompt_embeds"));
  // Prefixes are shared by equal vectors under the same salt alone.
  const auto salt = [&](std::vector<float> values, const char* cache_salt) {
    GenerationRequest request;
    request.cache_salt = cache_salt;
    return value_or_throw(validate({-1}, vectors(2, std::move(values)), request))
        .fields()
        .cache_salt;
  };
  EXPECT_EQ(salt({1, 2}, ""), salt({1, 2}, ""));
  EXPECT_NE(salt({1, 2}, ""), salt({1, 3}, ""));
  EXPECT_NE(salt({1, 2}, ""), salt({1, 2}, "x"));
  EXPECT_FALSE(value_or_throw(validate({-1}, vectors(2, {1, 2}))).fields().speculate);
}

TEST(Validate, HiddenStatesNeedAnEngineThatKeepsThem) {
  GenerationRequest request;
  request.hidden_states = HiddenStatesOption::kAll;
  const Result<ValidRequest> refused = validate_request(request, {5}, limits());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().message,
            "hidden_states: the engine was started without --enable-hidden-states");
  RequestLimits with = limits();
  with.has_hidden_states = true;
  EXPECT_TRUE(
      value_or_throw(validate_request(request, {5}, with)).fields().params.reports_prompt());
  request.hidden_states = HiddenStatesOption::kOutputs;
  EXPECT_FALSE(
      value_or_throw(validate_request(request, {5}, with)).fields().params.reports_prompt());
}

TEST(Validate, APriorityNeedsThePolicy) {
  GenerationRequest request;
  request.priority = -5;
  RequestLimits fcfs = limits();
  fcfs.has_priorities = false;
  const Result<ValidRequest> refused = validate_request(request, {5}, fcfs);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(
      refused.error().message,
      "priority: -5 must be 0, since the engine was started without --scheduling-policy priority");
  EXPECT_EQ(value_or_throw(validate_request(request, {5}, limits())).fields().priority, -5);
  request.priority = 0;
  EXPECT_TRUE(validate_request(request, {5}, fcfs));
}

TEST(Validate, StopStringsHaveALimit) {
  GenerationRequest request;
  request.sampling.stop.assign(kMaxStopStrings, "x");
  EXPECT_TRUE(validate_request(request, {5}, limits()));
  request.sampling.stop.emplace_back("x");
  EXPECT_EQ(validate_request(request, {5}, limits()).error().message,
            "stop: 1025 strings are more than 1024");
  request.sampling.stop = {"x", std::string(kMaxStopBytes - 1, 'y')};
  EXPECT_TRUE(validate_request(request, {5}, limits()));
  request.sampling.stop.emplace_back("z");
  EXPECT_EQ(validate_request(request, {5}, limits()).error().message,
            "stop: 65537 bytes in all strings are more than 65536");
}

TEST(Validate, StopIdsHaveALimitBeforeTheyAreRead) {
  GenerationRequest request;
  request.sampling.stop_token_ids.assign(kMaxStopTokenIds, 3);
  EXPECT_TRUE(validate_request(request, {5}, limits()));
  request.sampling.stop_token_ids.push_back(-1);
  EXPECT_EQ(validate_request(request, {5}, limits()).error().message,
            "stop_token_ids: 1025 ids are more than 1024");
}

TEST(Validate, WithoutAPromptWhatNoPromptMakesRight) {
  const auto message = [](const Edit& edit) {
    GenerationRequest request;
    edit(request);
    return check_without_prompt(request, limits()).error().message;
  };
  EXPECT_TRUE(check_without_prompt(GenerationRequest(), limits()));
  EXPECT_EQ(message(option([](auto& o) { o.top_p = 2; })), "top_p: 2 is outside (0, 1]");
  EXPECT_EQ(message(option([](auto& o) { o.bad_words.assign(kMaxBadWords + 1, "x"); })),
            "bad_words: 2177 strings are more than 2176");
  EXPECT_EQ(message(option([](auto& o) { o.stop_token_ids = {100}; })),
            "stop_token_ids: 100 is outside the vocabulary [0, 99]");
  EXPECT_THAT(message([](auto& r) { r.hidden_states = HiddenStatesOption::kAll; }),
              HasSubstr("--enable-hidden-states"));
}

TEST(Validate, ValuesThatChangeNothingAreOff) {
  EXPECT_EQ(valid(option([](auto& o) { o.top_k = 99; })).params.top_k, 99);
  EXPECT_EQ(valid(option([](auto& o) { o.top_k = 100; })).params.top_k, 0);
  EXPECT_GT(valid(option([](auto& o) { o.top_p = 1e-300; })).params.top_p, 0.0F);
}

TEST(Validate, SeedsOfEitherSign) {
  EXPECT_EQ(valid(option([](auto& o) { o.seed = 7; })).seed, 7U);
  EXPECT_EQ(valid(option([](auto& o) { o.seed = 7; })).params.seed, 7U);
  EXPECT_EQ(valid(option([](auto& o) { o.seed = -2; })).seed,
            std::numeric_limits<uint64_t>::max() - 1);
  EXPECT_EQ(valid(option([](auto& o) { o.seed = -1; })).seed, std::nullopt);
}

TEST(Validate, ChoicesAreSplitWithASeedEach) {
  std::vector<ValidRequest> split = split_choices(value_or_throw(validate(option([](auto& o) {
    o.n = 3;
    o.seed = 7;
    o.top_p = 0.5;
  }))));
  ASSERT_EQ(split.size(), 3U);
  for (size_t i = 0; i < split.size(); ++i) {
    const RequestFields& fields = split[i].fields();
    EXPECT_EQ(fields.num_choices, 1);
    EXPECT_EQ(fields.seed, 7 + i);
    EXPECT_EQ(fields.params.seed, 7 + i);
    EXPECT_EQ(fields.params.top_p, 0.5F);
    EXPECT_EQ(fields.prompt_token_ids, (std::vector<TokenId>{5, 6, 7}));
  }
  split = split_choices(value_or_throw(validate(option([](auto& o) { o.n = 2; }))));
  ASSERT_EQ(split.size(), 2U);
  EXPECT_EQ(split[1].fields().seed, std::nullopt);
  EXPECT_EQ(split_choices(value_or_throw(validate([](GenerationRequest&) {}))).size(), 1U);
}

TEST(Validate, WithoutAModelOnlyWhatEveryModelRefuses) {
  SamplingOptions options;
  EXPECT_TRUE(check_without_model(options));
  options.max_tokens = 1'000'000;
  options.stop_token_ids = {1'000'000};
  options.n = 2;
  EXPECT_TRUE(check_without_model(options));
  options.temperature = 0;
  EXPECT_FALSE(check_without_model(options));
  options.n = 1;
  options.min_p = 2;
  EXPECT_EQ(check_without_model(options).error().message, "min_p: 2 is outside [0, 1]");
}

TEST(Validate, StopsAndSalts) {
  const RequestFields fields = valid([](GenerationRequest& request) {
    request.sampling.ignore_eos = true;
    request.sampling.stop_token_ids = {7, 3, 7};
    request.sampling.stop = {"end"};
    request.cache_salt = "tenant";
    request.priority = 4;
  });
  EXPECT_TRUE(fields.eos_token_ids.empty());
  EXPECT_EQ(fields.stop_token_ids, (std::vector<TokenId>{7, 3}));
  EXPECT_EQ(fields.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(fields.priority, 4);
  EXPECT_NE(fields.cache_salt, 0U);
  EXPECT_NE(fields.cache_salt,
            valid([](GenerationRequest& r) { r.cache_salt = "tenant2"; }).cache_salt);
}

}  // namespace
}  // namespace warprow
