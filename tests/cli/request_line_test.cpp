// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/request_line.h"

#include "cli/flags/sampling_fields.h"

#include <map>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;

std::string line_error(const std::string& line) {
  const auto request = parse_request_line(line, {});
  return request ? "" : request.error().message;
}

GenerationRequest parsed(const std::string& line, const SamplingOptions& defaults = {}) {
  const auto request = parse_request_line(line, defaults);
  EXPECT_TRUE(request) << line << ": " << request.error().message;
  return request ? *request : GenerationRequest{};
}

TEST(RequestLine, ReadsEachKindOfPrompt) {
  EXPECT_EQ(std::get<std::string>(parsed(R"({"prompt":"a\u00e9"})").prompt), "aé");
  EXPECT_THAT(std::get<std::vector<TokenId>>(parsed(R"({"prompt":[1,2.0,3]})").prompt),
              ElementsAre(1, 2, 3));
  const auto request = parsed(
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})");
  const auto& messages = std::get<std::vector<ChatMessage>>(request.prompt);
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[1].content, "a\nb");
}

TEST(RequestLine, ReadsSamplingFieldsOverTheDefaults) {
  SamplingOptions defaults;
  defaults.max_tokens = 16;
  defaults.temperature = 0.0;
  defaults.stop = {"x"};
  const auto request = parsed(
      R"({"prompt":"p","max_tokens":3.0,"top_k":-1,"stop":"END","stop_token_ids":[2],"ignore_eos":true,"seed":null,)"
      R"("priority":-2,"cache_salt":"s","logprobs":5,"n":1})",
      defaults);
  EXPECT_EQ(request.sampling.max_tokens, 3);
  EXPECT_EQ(request.sampling.temperature, 0.0);
  EXPECT_EQ(request.sampling.top_k, -1);
  EXPECT_THAT(request.sampling.stop, ElementsAre("END"));
  EXPECT_THAT(request.sampling.stop_token_ids, ElementsAre(2));
  EXPECT_TRUE(request.sampling.ignore_eos);
  EXPECT_FALSE(request.sampling.seed);
  EXPECT_EQ(request.priority, -2);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_THAT(parsed(R"({"prompt":"p","stop":["a","b"]})").sampling.stop, ElementsAre("a", "b"));
}

TEST(RequestLine, ReadsWhatIsToldOfPrompts) {
  const GenerationRequest request = parsed(
      R"({"prompt":"p","prompt_logprobs":2,"logprob_token_ids":[3,4],"hidden_states":"all"})");
  EXPECT_EQ(request.sampling.prompt_logprobs, 2);
  EXPECT_EQ(request.sampling.logprob_token_ids, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(request.hidden_states, HiddenStatesOption::kAll);
  EXPECT_EQ(parsed(R"({"prompt":"p","hidden_states":"outputs"})").hidden_states,
            HiddenStatesOption::kOutputs);
  EXPECT_EQ(parsed(R"({"prompt":"p","hidden_states":null})").hidden_states,
            HiddenStatesOption::kNone);
  const auto wrong = parse_request_line(R"({"prompt":"p","hidden_states":true})", {});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message, "hidden_states: must be outputs or all, not true");
}

TEST(RequestLine, ReadsTokenLists) {
  SamplingOptions defaults;
  defaults.logit_bias = {{1, 1}};
  const SamplingOptions options =
      parsed(
          R"({"prompt":"p","allowed_token_ids":[],"bad_words":"a b","logit_bias":{"7":-5,"2":1.5}})",
          defaults)
          .sampling;
  ASSERT_TRUE(options.allowed_token_ids);
  EXPECT_TRUE(options.allowed_token_ids->empty());
  EXPECT_THAT(options.bad_words, ElementsAre("a b"));
  EXPECT_EQ(options.logit_bias, (std::map<int64_t, double>{{2, 1.5}, {7, -5}}));
  EXPECT_FALSE(parsed(R"({"prompt":"p"})").sampling.allowed_token_ids);
}

TEST(RequestLine, NullCountsAsAbsentForEveryField) {
  std::string line = R"({"prompt":"p","messages":null,"priority":null,"cache_salt":null)";
  for_each_sampling_field(
      [&](const SamplingField& field) { line += fmt::format(",\"{}\":null", field.name); });
  EXPECT_EQ(line_error(line + "}"), "");
}

TEST(RequestLine, MistakesNameTheField) {
  EXPECT_EQ(line_error("{"), "not a JSON object");
  EXPECT_EQ(line_error("[1]"), "must be a JSON object, not [1]");
  EXPECT_EQ(line_error("{}"), "needs prompt or messages");
  EXPECT_EQ(line_error(R"({"prompt":null})"), "needs prompt or messages");
  EXPECT_EQ(line_error(R"({"prompt":"a","messages":[{"role":"user","content":"b"}]})"),
            "has both prompt and messages, needs one of them");
  EXPECT_EQ(line_error(R"({"prompt":"a","temprature":1})"), "unknown field 'temprature'");
  EXPECT_EQ(line_error(R"({"prompt":"a","temprature":null})"), "unknown field 'temprature'");
  EXPECT_EQ(line_error(R"({"prompt":5})"), "prompt: must be text or a list of token ids, not 5");
  EXPECT_EQ(line_error(R"({"prompt":[1,"a"]})"),
            R"(prompt: must be text or a list of token ids, not [1,"a"])");
  EXPECT_EQ(line_error(R"({"prompt":[4294967296]})"),
            "prompt: must be text or a list of token ids, not [4294967296]");
  EXPECT_EQ(line_error(R"({"prompt":"a","max_tokens":"3"})"),
            R"(max_tokens: must be a whole number, not "3")");
  EXPECT_EQ(line_error(R"({"prompt":"a","max_tokens":1.5})"),
            "max_tokens: must be a whole number, not 1.5");
  EXPECT_EQ(line_error(R"({"prompt":"a","seed":18446744073709551615})"),
            "seed: must be a whole number, not 18446744073709551615");
  EXPECT_EQ(line_error(R"({"prompt":"a","temperature":true})"),
            "temperature: must be a number, not true");
  EXPECT_EQ(line_error(R"({"prompt":"a","ignore_eos":1})"),
            "ignore_eos: must be true or false, not 1");
  EXPECT_EQ(line_error(R"({"prompt":"a","stop":[1]})"),
            "stop: must be text or a list of texts, not [1]");
  EXPECT_EQ(line_error(R"({"prompt":"a","stop_token_ids":2})"),
            "stop_token_ids: must be a list of token ids, not 2");
  EXPECT_EQ(line_error(R"({"prompt":"a","allowed_token_ids":2})"),
            "allowed_token_ids: must be a list of token ids, not 2");
  for (const char* bias : {"[1]", R"({"a":1})", R"({"1":"a"})", R"({"":1})", R"({"1.5":1})"}) {
    EXPECT_EQ(line_error(fmt::format(R"({{"prompt":"a","logit_bias":{}}})", bias)),
              fmt::format("logit_bias: must be an object of token ids and numbers, not {}", bias));
  }
  EXPECT_EQ(line_error(R"({"messages":[]})"), "messages: must be a list of one message or more");
  EXPECT_EQ(line_error(R"({"messages":[{"content":"b"}]})"),
            "messages[0].role: must be text, for instance user");
  EXPECT_EQ(line_error(R"({"messages":[{"role":"user"}]})"),
            "messages[0].content: must be text or a list of text parts");
  EXPECT_EQ(line_error(R"({"messages":[{"role":"user","content":"x","extra":1}]})"),
            "messages[0]: unknown field 'extra'");
}

TEST(RequestLine, ReadsTheStructureThatIsAskedFor) {
  SamplingOptions defaults;
  defaults.structured_output = StructuredOutput{GrammarKind::kRegex, "a+"};
  EXPECT_EQ(parsed(R"({"prompt":"p"})", defaults).sampling.structured_output,
            defaults.structured_output);
  EXPECT_EQ(parsed(R"({"prompt":"p","structured_outputs":{"json":{"b":1,"a":2}}})", defaults)
                .sampling.structured_output,
            (StructuredOutput{GrammarKind::kJsonSchema, R"({"b":1,"a":2})"}));
  EXPECT_FALSE(parsed(R"({"prompt":"p","response_format":{"type":"text"}})", defaults)
                   .sampling.structured_output);
  EXPECT_THAT(line_error(R"({"prompt":"p","structured_outputs":{"regex":1}})"),
              ::testing::HasSubstr("structured_outputs.regex"));
}

}  // namespace
}  // namespace warprow
