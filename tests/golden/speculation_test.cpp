// SPDX-License-Identifier: Apache-2.0
// Speculative decoding changes nothing but the number of steps: each rule of a request, where drafts are accepted in the
// middle of it. Tests are named after mistakes that other engines have made.
#include "tests/support/model_rig.h"
#include "tests/support/rig_grammars.h"
#include "tests/support/source_path.h"
#include "text/byte_text.h"
#include "wire/token_lists.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::ModelRig;
using test::RigOptions;
using test::RigResult;

using Proposer = std::string (*)(int32_t num_drafts, bool adaptive);

RigOptions options_with(int32_t num_drafts, Proposer proposer = test::ngram_config) {
  RigOptions options =
      test::small_options(test::source_path("tests/golden/tiny/llama_gqa_tied/model.gguf"));
  if (num_drafts > 0) {
    options.config.speculative_config = proposer(num_drafts, /*adaptive=*/false);
  }
  return options;
}

// A text that repeats itself, and an answer that goes on with it: a strong bias towards few tokens makes a random model
// repeat itself too.
Request repeating_request(int32_t max_tokens = 48) {
  Request request;
  request.id = 1;
  for (int32_t i = 0; i < 40; ++i) {
    request.prompt.push_back(20 + i % 5);
  }
  request.max_tokens = max_tokens;
  request.params.num_logprobs = 2;
  return request;
}

void set_lists(Request& request, const TokenLists& lists) {
  request.token_lists = pack_token_lists(lists);
  request.params.flags |= SamplingParams::kHasTokenLists;
}

struct SpeculationOutcome {
  RigResult result;
  SchedulerStats stats;
  int64_t num_steps = 0;
};

SpeculationOutcome run(const Request& request,
                       RigOptions options,
                       const Grammar* grammar = nullptr) {
  ModelRig rig(options);
  if (grammar != nullptr) {
    rig.add(request, *grammar);
  } else {
    rig.add(request);
  }
  SpeculationOutcome out;
  out.result = rig.run().at(request.id);
  rig.scheduler().check_invariants();
  out.stats = rig.scheduler().stats();
  out.num_steps = rig.executor().stats().steps;
  return out;
}

// The request with drafts of n-grams, after a comparison of it and of one with suffix decoding with the same request
// without. Some drafts must have been accepted.
SpeculationOutcome expect_same(
    const Request& request,
    const Grammar* grammar = nullptr,
    const std::function<void(RigOptions&)>& set = [](RigOptions&) {}) {
  RigOptions plain_options = options_with(0);
  set(plain_options);
  const SpeculationOutcome plain = run(request, plain_options, grammar);
  SpeculationOutcome last;
  using Settings = std::pair<int32_t, Proposer>;
  for (const auto& [num_drafts, proposer] : {Settings{1, test::suffix_config},
                                             Settings{3, test::suffix_config},
                                             Settings{7, test::suffix_config},
                                             Settings{1, test::ngram_config},
                                             Settings{3, test::ngram_config},
                                             Settings{7, test::ngram_config}}) {
    RigOptions options = options_with(num_drafts, proposer);
    SCOPED_TRACE(options.config.speculative_config);
    set(options);
    last = run(request, options, grammar);
    EXPECT_EQ(last.result.tokens, plain.result.tokens);
    EXPECT_EQ(last.result.reason, plain.result.reason);
    EXPECT_EQ(last.result.top, plain.result.top);
    EXPECT_EQ(last.result.logprobs.size(), plain.result.logprobs.size());
    for (size_t i = 0; i < last.result.logprobs.size(); ++i) {
      EXPECT_EQ(last.result.logprobs[i].logprob, plain.result.logprobs[i].logprob) << i;
      EXPECT_EQ(last.result.logprobs[i].rank, plain.result.logprobs[i].rank) << i;
    }
    EXPECT_GT(last.stats.num_accepted_tokens, 0);
    EXPECT_LT(last.num_steps, plain.num_steps);
  }
  return last;
}

// One token is far likelier than all others, so the answer repeats it unless a rule forbids that.
TokenLists towards(TokenId token) {
  TokenLists lists;
  lists.biases.emplace_back(token, 60.0F);
  return lists;
}

TEST(Speculation, AnAnswerThatRepeatsItselfTakesFewSteps) {
  Request request = repeating_request(64);
  set_lists(request, towards(9));
  const SpeculationOutcome with = expect_same(request);
  EXPECT_LT(with.num_steps, 64 / 4) << "7 drafts";
  EXPECT_EQ(with.stats.num_accepted_at[0], with.stats.num_drafts - 1) << "all but the first run";
}

// llama.cpp#27972, sglang#17349.
TEST(Speculation, LogprobsOfAcceptedDraftsAreThoseOfTheModel) {
  Request request = repeating_request();
  set_lists(request, towards(9));
  const SpeculationOutcome with = expect_same(request);
  ASSERT_EQ(with.result.logprobs.size(), with.result.tokens.size());
  const auto is_zero = [](const TokenLogprobs& entry) { return entry.logprob == 0.0F; };
  EXPECT_TRUE(std::ranges::none_of(with.result.logprobs, is_zero));
}

// Penalties see the drafts before a position, and count the last sampled token once: twice would end the repetition
// earlier. vllm#33251.
TEST(Speculation, PenaltiesCountEveryTokenOnce) {
  Request request = repeating_request();
  TokenLists lists = towards(9);
  lists.biases.emplace_back(11, 55.0F);
  set_lists(request, lists);
  request.params.frequency_penalty = 0.5F;
  request.params.repetition_penalty = 1.05F;
  const SpeculationOutcome with = expect_same(request);
  EXPECT_GT(std::ranges::count(with.result.tokens, 9), 3);
  EXPECT_GT(std::ranges::count(with.result.tokens, 11), 3) << "the penalties change the answer";
}

// The drafts would complete the forbidden word in the middle of a run. vllm#52311.
TEST(Speculation, ABadWordEndsAtItsOwnPosition) {
  Request request = repeating_request();
  TokenLists lists = towards(9);
  lists.biases.emplace_back(11, 30.0F);
  lists.bad_words.push_back({9, 9, 9});
  set_lists(request, lists);
  const SpeculationOutcome with = expect_same(request);
  const std::vector<TokenId>& tokens = with.result.tokens;
  for (size_t i = 0; i + 2 < tokens.size(); ++i) {
    EXPECT_FALSE(tokens[i] == 9 && tokens[i + 1] == 9 && tokens[i + 2] == 9) << i;
    EXPECT_TRUE(tokens[i] != 11 || tokens[i + 1] == 9) << "forbidden a token too early";
  }
}

TEST(Speculation, MinTokensEndInsideARun) {
  Request request = repeating_request();
  TokenLists lists = towards(9);
  lists.biases.emplace_back(2, 90.0F);
  set_lists(request, lists);
  request.params.min_tokens = 21;
  request.eos_token_ids = {2};
  const SpeculationOutcome with = expect_same(request);
  EXPECT_EQ(with.result.tokens.size(), 22U);
  EXPECT_EQ(with.result.reason, FinishReason::kStop);
}

TEST(Speculation, MaxTokensEndInsideARun) {
  for (int32_t max_tokens = 17; max_tokens < 25; ++max_tokens) {
    Request request = repeating_request(max_tokens);
    set_lists(request, towards(9));
    const SpeculationOutcome with = expect_same(request);
    EXPECT_EQ(std::ssize(with.result.tokens), max_tokens);
    EXPECT_EQ(with.result.reason, FinishReason::kLength);
  }
}

// vllm#53962.
TEST(Speculation, TheLongestContextEndsInsideARun) {
  Request request = repeating_request(1000);
  set_lists(request, towards(9));
  const SpeculationOutcome with =
      expect_same(request, nullptr, [](RigOptions& options) { options.config.max_model_len = 75; });
  EXPECT_EQ(with.result.tokens.size(), 35U);
  EXPECT_EQ(with.result.reason, FinishReason::kLength);
}

// The context crosses pages of tokens and blocks; acceptance stays what it was. vllm#52873; at the position of its
// limit: ARowPast32768Tokens of each proposer.
TEST(Speculation, AcceptanceDoesNotDieAtAPage) {
  Request request = repeating_request(150);
  set_lists(request, towards(9));
  const auto few = [](RigOptions& options) {
    options.runner.token_pages = {.page_size = 16, .num_pages = 400};
  };
  const SpeculationOutcome with = expect_same(request, nullptr, few);
  EXPECT_LT(with.num_steps, 150 / 5);
}

Grammar regex(const std::string& text) {
  const std::unique_ptr<TextModel> model = value_or_throw(make_byte_text());
  return value_or_throw(GrammarSource(*model).compile({GrammarKind::kRegex, text}));
}

// The grammar forces a text that repeats itself, so drafts are right until it ends within a run. sglang#21723.
TEST(Speculation, AGrammarEndsInsideARun) {
  const Grammar grammar = regex("(abcde){7}");
  const Request request = repeating_request(80);
  const SpeculationOutcome with = expect_same(request, &grammar);
  EXPECT_EQ(with.result.reason, FinishReason::kStop);
  std::string text;
  for (const TokenId token : with.result.tokens) {
    text += static_cast<char>(token);
  }
  EXPECT_EQ(text.substr(0, 35), "abcdeabcdeabcdeabcdeabcdeabcdeabcde");
}

// Drafts that the grammar rejects are no error of the request. vllm#29821, vllm#44006.
TEST(Speculation, AGrammarThatRejectsDrafts) {
  const Grammar grammar = regex("(ab){6}(ac){6}(ba){6}[x-z]");
  const SpeculationOutcome with = expect_same(repeating_request(80), &grammar);
  EXPECT_EQ(with.result.reason, FinishReason::kStop);
  EXPECT_LT(with.stats.num_accepted_tokens, with.stats.num_drafted_tokens);
}

// Several at once, some with a grammar: their drafts and masks must not mix. vllm#52620.
TEST(Speculation, RequestsWithAndWithoutGrammarsTogether) {
  const Grammar grammar = regex("(abc|de){3,9}(fg){5}\\.");
  std::map<uint64_t, RigResult> results[2];
  for (const bool drafts : {false, true}) {
    ModelRig rig(options_with(drafts ? 5 : 0));
    for (uint64_t id = 1; id <= 8; ++id) {
      Request request = repeating_request(40 + static_cast<int32_t>(id));
      request.id = id;
      request.prompt.push_back(static_cast<TokenId>(id));
      if (id % 2 == 0) {
        request.params.temperature = 0.8F;
        request.params.seed = id;
      }
      if (id % 4 < 2) {
        rig.add(request, grammar);
      } else {
        set_lists(request, towards(static_cast<TokenId>(8 + id)));
        rig.add(request);
      }
    }
    results[drafts ? 1 : 0] = rig.run();
    EXPECT_EQ(rig.scheduler().stats().num_accepted_tokens > 0, drafts);
  }
  for (uint64_t id = 1; id <= 8; ++id) {
    EXPECT_EQ(results[0].at(id).tokens, results[1].at(id).tokens) << id;
    EXPECT_EQ(results[0].at(id).reason, results[1].at(id).reason) << id;
  }
}

// No draft was found: the row's places of drafts hold no token, which must not be looked up or counted.
// vllm#46899.
TEST(Speculation, ADraftThatWasNotFoundIsNoToken) {
  Request request = repeating_request(20);
  request.prompt.clear();
  for (int32_t i = 0; i < 60; ++i) {
    request.prompt.push_back(i + 40);
  }
  request.params.temperature = 3.0F;
  request.params.seed = 4;
  request.params.presence_penalty = 2.0F;
  RigOptions options = options_with(4);
  options.config.speculative_config =
      R"({"method":"ngram","prompt_lookup_min":4,"num_speculative_tokens":4,"adaptive":false})";
  const SpeculationOutcome with = run(request, options);
  EXPECT_EQ(with.result.tokens, run(request, options_with(0)).result.tokens);
  EXPECT_EQ(with.stats.num_accepted_tokens, 0);
  EXPECT_GT(with.stats.num_drafted_tokens, 0);
}

// Hits on cached prefixes and preemptions do not change what is proposed. vllm#41838.
TEST(Speculation, PrefixHitsKeepTheAcceptance) {
  Request request = repeating_request();
  set_lists(request, towards(9));
  ModelRig rig(options_with(4));
  int64_t before = 0;
  std::vector<int64_t> steps;
  for (uint64_t id = 1; id <= 3; ++id) {
    request.id = id;
    rig.add(request);
    rig.run();
    steps.push_back(rig.executor().stats().steps - before);
    before = rig.executor().stats().steps;
  }
  EXPECT_GT(rig.scheduler().stats().num_prefix_hit_tokens, 0);
  EXPECT_EQ(steps[1], steps[2]);
  EXPECT_LE(steps[1], steps[0]);
  EXPECT_EQ(rig.results().at(1).tokens, rig.results().at(3).tokens);
}

// Every rank proposes the same drafts; of several stages the last one does, and tells the others.
TEST(Speculation, OverRanksAndStages) {
  Request request = repeating_request(30);
  set_lists(request, towards(9));
  expect_same(
      request, nullptr, [](RigOptions& options) { options.config.tensor_parallel_size = 2; });
  expect_same(
      request, nullptr, [](RigOptions& options) { options.config.pipeline_parallel_size = 2; });
}

// vllm#52071: of several stages, with no step planned ahead.
TEST(Speculation, StagesWithoutStepsAhead) {
  Request request = repeating_request(30);
  set_lists(request, towards(9));
  expect_same(request, nullptr, [](RigOptions& options) {
    options.config.pipeline_parallel_size = 2;
    options.config.async_scheduling = false;
  });
}

// trtllm#17701: the logprobs before all rules are those of the same text as a prompt, which no rule changes.
TEST(Speculation, PenaltiesStayOutOfReportedLogprobs) {
  Request request = repeating_request();
  set_lists(request, towards(9));
  request.params.frequency_penalty = 0.5F;
  request.params.repetition_penalty = 1.05F;
  const RigResult result = expect_same(request).result;
  Request prompt = repeating_request(1);
  prompt.prompt.insert(prompt.prompt.end(), result.tokens.begin(), result.tokens.end());
  prompt.params.num_prompt_logprobs = 0;
  const RigResult told = run(prompt, options_with(0)).result;
  const size_t first = request.prompt.size() - 1;  // the first token of a prompt has none
  ASSERT_EQ(told.prompt_logprobs.size(), first + result.tokens.size());
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    EXPECT_EQ(result.logprobs[i].logprob, told.prompt_logprobs[first + i].logprob) << i;
  }
}

// An answer that does not repeat itself, asked for again: the outputs of the first request are the drafts of the second.
TEST(Speculation, OutputsOfAnEarlierRequestAreDrafts) {
  Request request = repeating_request(60);
  request.params.temperature = 1.0F;
  request.params.seed = 11;
  for (const bool cached : {true, false}) {
    RigOptions options = options_with(7);
    options.config.speculative_config =
        std::string(R"({"method":"suffix","num_speculative_tokens":7,"adaptive":false)") +
        (cached ? "}" : R"(,"suffix_decoding_max_cached_requests":0})");
    ModelRig rig(options);
    int64_t steps[2] = {};
    for (uint64_t id = 1; id <= 2; ++id) {
      request.id = id;
      rig.add(request);
      rig.run();
      steps[id - 1] = rig.executor().stats().steps - steps[0];
    }
    EXPECT_EQ(rig.results().at(1).tokens, rig.results().at(2).tokens);
    EXPECT_EQ(rig.results().at(2).tokens, run(request, options_with(0)).result.tokens);
    if (cached) {
      EXPECT_LT(steps[1], steps[0] / 2);
    } else {
      EXPECT_EQ(steps[1], steps[0]);
    }
  }
}

// For measurements: a model whose drafts are all right for itself has them accepted at the given rate.
TEST(Speculation, AcceptanceAtAGivenRate) {
  const auto accepted = [](const std::string& rate) {
    RigOptions options = options_with(0);
    options.config.speculative_config =
        R"({"method":"draft_model","model":")" + options.config.model +
        R"(","num_speculative_tokens":3,"adaptive":false,"rejection_sample_method":"synthetic",)" +
        R"("synthetic_acceptance_rate":)" + rate + "}";
    const SchedulerStats stats = run(repeating_request(200), options).stats;
    return static_cast<double>(stats.num_accepted_at[0]) / static_cast<double>(stats.num_drafts);
  };
  EXPECT_GT(accepted("1"), 0.95);
  EXPECT_NEAR(accepted("0.5"), 0.5, 0.15);
}

TEST(Speculation, ARequestMayRefuseDrafts) {
  Request request = repeating_request();
  set_lists(request, towards(9));
  request.may_draft = false;
  const SpeculationOutcome without = run(request, options_with(4));
  EXPECT_EQ(without.stats.num_drafts, 0);
  EXPECT_EQ(without.result.tokens, run(request, options_with(0)).result.tokens);
}

// The rule begins to draft when that pays, and stops when it does not.
TEST(Speculation, TheAdaptiveRuleFollowsTheAnswer) {
  Request request = repeating_request(100);
  RigOptions options = options_with(4);
  options.config.speculative_config = test::ngram_config(4, /*adaptive=*/true);
  set_lists(request, towards(9));
  const SpeculationOutcome repeats = run(request, options);
  EXPECT_LT(repeats.num_steps, 50);
  EXPECT_GT(repeats.stats.num_undrafted, 0) << "the first steps";
  request.token_lists.clear();
  request.params.flags = 0;
  request.params.temperature = 5.0F;
  request.params.seed = 3;
  const SpeculationOutcome random = run(request, options);
  EXPECT_LT(random.stats.num_drafts, 20);
  EXPECT_GT(random.stats.num_undrafted, 70);
  EXPECT_EQ(random.result.tokens, run(request, options_with(0)).result.tokens);
}

}  // namespace
}  // namespace warprow
