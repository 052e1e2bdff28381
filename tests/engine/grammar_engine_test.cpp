// SPDX-License-Identifier: Apache-2.0
// Structured requests through the engine. Tokens must equal those of a plain loop of model and matcher under any
// timing, and no row waits for another row's mask.
#include "base/check.h"
#include "engine/grammar_progress.h"
#include "engine/grammar_source.h"
#include "tests/engine/toy_engine.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::Client;
using ::testing::ElementsAre;
using testing::FakeModel;
using testing::greedy_request;
using testing::kToyVocab;
using testing::make_toy_engine;
using testing::make_toy_text;
using testing::Told;
using testing::ToyAnswer;

constexpr size_t kWords = (kToyVocab + 31) / 32;

// The number of an answer's tokens in its thinking section, found from the text. Without an end tag all tokens count.
size_t thinking_len(const std::vector<TokenId>& answer, Thinking thinking) {
  if (thinking == Thinking::kNone ||
      (thinking == Thinking::kMaybe && answer.front() != testing::toy_token("<think>"))) {
    return 0;
  }
  std::string text;
  for (size_t i = 0; i < answer.size(); ++i) {
    text += testing::toy_token_bytes(answer[i]);
    if (text.find("</think>") != std::string::npos) {
      return i + 1;
    }
  }
  return answer.size();
}

// toy_answer under the request's grammar, if it has one.
ToyAnswer grammar_answer(const RequestFields& fields) {
  if (!fields.grammar) {
    return testing::toy_answer(fields);
  }
  ToyAnswer answer;
  GrammarMatcher matcher(*fields.grammar);
  std::vector<TokenId> context = fields.prompt_token_ids;
  while (!matcher.is_stopped()) {
    std::vector<uint32_t> mask(kWords);
    EXPECT_TRUE(matcher.fill_mask(mask));
    const TokenId token = testing::toy_masked_token(
        testing::toy_next_token(context, fields.params, kToyVocab), mask, kToyVocab);
    context.push_back(token);
    answer.token_ids.push_back(token);
    const auto& eos = fields.eos_token_ids;
    if (std::find(eos.begin(), eos.end(), token) != eos.end()) {
      answer.reason = FinishReason::kStop;
      return answer;
    }
    if (std::ssize(answer.token_ids) == fields.max_tokens) {
      answer.reason = FinishReason::kLength;
      return answer;
    }
    EXPECT_TRUE(matcher.accept(token));
  }
  answer.reason = FinishReason::kStop;
  return answer;
}

void expect_matching_answer(const Told& told, const RequestFields& fields) {
  const ToyAnswer answer = grammar_answer(fields);
  EXPECT_EQ(told.token_ids, answer.token_ids);
  EXPECT_EQ(told.last.finish_reason, answer.reason);
  EXPECT_EQ(told.last.num_output_tokens, answer.token_ids.size());
  EXPECT_EQ(told.num_final, 1);
  EXPECT_FALSE(told.updated_after_final);
}

GenerationRequest request_for(const char* regex, int64_t max_tokens, int32_t first = 5) {
  GenerationRequest request = greedy_request({first, 6, 7}, max_tokens);
  request.sampling.ignore_eos = true;
  request.sampling.structured_output = StructuredOutput{GrammarKind::kRegex, regex};
  return request;
}

GenerationRequest random_grammar_request(std::mt19937& random) {
  constexpr const char* kRegexes[] = {
      "[a-f]{1,40}", "(ab|stop|xyz)+", "[0-9]+( [0-9]+)*", "[a-z]{3}", "\u00e9{2,9}!?", "q"};
  GenerationRequest request = testing::random_toy_request(random);
  request.sampling.ignore_eos = random() % 2 == 0;
  if (random() % 3 != 0) {
    request.sampling.structured_output =
        StructuredOutput{GrammarKind::kRegex, kRegexes[random() % std::size(kRegexes)]};
  }
  return request;
}

struct GrammarAxis {
  const char* name;
  bool async = true;
  bool serialised = false;
  int step_us = 0;
  int forward_us = 0;
  int mask_delay_us = 0;
  int num_blocks = 65;
  int num_drafts = 0;
};

void PrintTo(const GrammarAxis& axis, std::ostream* out) { *out << axis.name; }

class GrammarEngineAxes : public ::testing::TestWithParam<GrammarAxis> {
 protected:
  static std::unique_ptr<Engine> make() {
    const GrammarAxis& axis = GetParam();
    FakeModel model;
    model.step_time = microseconds(axis.step_us);
    model.forward_time = microseconds(axis.forward_us);
    model.num_blocks = axis.num_blocks;
    model.num_drafts = axis.num_drafts;
    EngineConfig config;
    config.async_scheduling = axis.async;
    config.grammar_mask_delay_us = axis.mask_delay_us;
    return make_toy_engine(config, model, axis.serialised);
  }
};

TEST_P(GrammarEngineAxes, AnswersAreTheModelsUnderTheGrammar) {
  std::mt19937 random(11);
  Client client;
  const std::unique_ptr<Engine> engine = make();
  testing::check_answers(
      client, *engine, 60, [&] { return random_grammar_request(random); }, expect_matching_answer);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.max_steps_in_flight, GetParam().async ? 2 : 1);
  EXPECT_EQ(stats.preemptions > 0, GetParam().num_blocks < 65);
  EXPECT_GT(stats.grammar_masks, 100);
  if (GetParam().mask_delay_us > 1000) {
    EXPECT_GT(stats.withheld_rows, 0);
  }
}

TEST_P(GrammarEngineAxes, RequestsMayLeaveAtAnyTime) {
  std::mt19937 random(12);
  Client client;
  {
    const std::unique_ptr<Engine> engine = make();
    std::vector<RequestId> ids;
    for (size_t i = 0; i < 80; ++i) {
      ids.push_back(client.submit(*engine, random_grammar_request(random)));
      if (random() % 2 == 0) {
        engine->abort(ids[random() % ids.size()]);
      }
      if (random() % 8 == 0) {
        std::this_thread::sleep_for(microseconds(random() % 300));
      }
    }
    for (size_t i = 0; i < 40; ++i) {
      client.wait(i);
    }
  }  // the other requests end with the engine
  for (size_t i = 0; i < client.size(); ++i) {
    EXPECT_EQ(client.wait(i).num_final, 1);
  }
}

// In a reasoning section the grammar does not constrain tokens. After the section it constrains them from the grammar's
// start, and drafts behind the section's end, too (vllm#36138).
TEST_P(GrammarEngineAxes, ThinkingComesBeforeTheGrammar) {
  constexpr const char* kRegex = "q[a-f]{1,9}";
  const std::unique_ptr<TextModel> text = make_toy_text();
  GrammarSource source(*text);
  const Grammar plain = value_or_throw(source.compile({GrammarKind::kRegex, kRegex}));
  std::mt19937 random(14);
  Client client;
  const std::unique_ptr<Engine> engine = make();
  std::vector<RequestFields> fields;
  std::vector<Thinking> thinking;
  for (size_t i = 0; i < 24; ++i) {
    GenerationRequest request = testing::random_toy_request(random);
    thinking.push_back(i % 2 == 0 ? Thinking::kOpen : Thinking::kMaybe);
    request.sampling.max_tokens = 40;
    request.sampling.ignore_eos = true;
    request.sampling.structured_output =
        StructuredOutput{.kind = GrammarKind::kRegex, .text = kRegex, .thinking = thinking.back()};
    ValidRequest valid = value_or_throw(engine->validate(request));
    fields.push_back(valid.fields());
    client.submit(*engine, std::move(valid));
  }
  size_t num_thoughts = 0;
  size_t num_behind = 0;
  for (size_t i = 0; i < fields.size(); ++i) {
    SCOPED_TRACE(i);
    const Told& told = client.wait(i);
    expect_matching_answer(told, fields[i]);
    const size_t len = thinking_len(told.token_ids, thinking[i]);
    std::vector<TokenId> context = fields[i].prompt_token_ids;
    GrammarMatcher matcher(plain);
    for (size_t t = 0; t < told.token_ids.size(); ++t) {
      const TokenId token = told.token_ids[t];
      if (t >= len) {
        EXPECT_TRUE(matcher.accept(token)) << t;
      } else if (t > 0 || thinking[i] == Thinking::kOpen) {
        EXPECT_EQ(token, testing::toy_next_token(context, fields[i].params, kToyVocab)) << t;
      }
      context.push_back(token);
    }
    num_thoughts += len > 0 ? 1 : 0;
    num_behind += len > 0 && len < told.token_ids.size() ? 1 : 0;
  }
  EXPECT_GT(num_thoughts, 12U) << "some sections were not open at the start";
  EXPECT_LT(num_thoughts, fields.size());
  EXPECT_GT(num_behind, 3U);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    GrammarEngineAxes,
    ::testing::Values(GrammarAxis{.name = "async"},
                      GrammarAxis{.name = "sync", .async = false},
                      GrammarAxis{.name = "serialised", .serialised = true},
                      GrammarAxis{.name = "slow_device", .step_us = 200, .forward_us = 200},
                      GrammarAxis{.name = "slow_masks", .step_us = 200, .mask_delay_us = 2000},
                      GrammarAxis{.name = "slow_masks_sync", .async = false, .mask_delay_us = 1500},
                      GrammarAxis{.name = "few_blocks", .num_blocks = 14},
                      GrammarAxis{
                          .name = "slow_masks_few_blocks", .mask_delay_us = 1500, .num_blocks = 14},
                      GrammarAxis{.name = "drafts", .num_drafts = 3},
                      GrammarAxis{.name = "drafts_sync", .async = false, .num_drafts = 2},
                      GrammarAxis{.name = "drafts_slow_masks_few_blocks",
                                  .serialised = true,
                                  .mask_delay_us = 1500,
                                  .num_blocks = 14,
                                  .num_drafts = 4}),
    [](const auto& axis) { return std::string(axis.param.name); });

// If a mask never arrives, only its own row misses its steps; other rows are not delayed.
TEST(GrammarEngine, RowsWithoutAGrammarAreNotDelayed) {
  constexpr size_t kStructured = 3;
  EngineConfig config;
  config.grammar_mask_delay_us = 600'000'000;  // the end of the engine interrupts the delay
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine(config, {});
  for (size_t i = 0; i < kStructured; ++i) {
    client.submit(*engine, request_for("[a-z]{9}", 20, 5 + static_cast<int32_t>(i)));
  }
  GenerationRequest plain = greedy_request({8, 9}, 60);
  plain.sampling.ignore_eos = true;
  ValidRequest valid = value_or_throw(engine->validate(plain));
  const RequestFields fields = valid.fields();
  client.submit(*engine, std::move(valid));
  expect_matching_answer(client.wait(kStructured), fields);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.output_tokens, 60);
  EXPECT_EQ(stats.grammar_masks, 0);
  EXPECT_EQ(stats.withheld_rows, kStructured) << "each row once, and then not planned again";
}

// A new request does not wait either while the only rows of a pending step lack masks, nor does one whose last token is
// then in flight.
TEST(GrammarEngine, RowsThatComeAndGoAreNotDelayed) {
  FakeModel model;
  model.max_num_seqs = 8;
  EngineConfig config;
  config.grammar_mask_delay_us = 600'000'000;
  std::mt19937 random(13);
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine(config, model);
  size_t num_structured = 0;
  for (int32_t i = 0; i < 40; ++i) {
    if (i % 8 == 0) {
      client.submit(*engine, request_for("[a-z]{9}", 20, 5 + i));
      ++num_structured;
    }
    std::this_thread::sleep_for(microseconds(random() % 1000));
    GenerationRequest plain = greedy_request({8, 2 + i}, 1 + static_cast<int64_t>(random() % 4));
    plain.sampling.ignore_eos = true;
    client.submit(*engine, plain);
    if (random() % 2 == 0) {
      EXPECT_EQ(client.wait(client.size() - 1).last.finish_reason, FinishReason::kLength);
    }
  }
  for (size_t i = 0; i < client.size(); ++i) {
    if (i % 9 != 0) {
      EXPECT_EQ(client.wait(i).last.finish_reason, FinishReason::kLength);
    }
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.grammar_masks, 0);
  EXPECT_LE(stats.withheld_rows, num_structured);
}

// Filling a mask during the forward costs no step: each token of a structured row comes in the earliest possible step.
TEST(GrammarEngine, ASlowFillHidesBehindTheForward) {
  constexpr int64_t kTokens = 25;
  FakeModel model;
  model.forward_outlasts_masks = true;
  EngineConfig config;
  config.grammar_mask_delay_us = 2'000;
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine(config, model);
  GenerationRequest plain = greedy_request({8, 9}, 4 * kTokens);
  plain.sampling.ignore_eos = true;
  std::vector<RequestFields> fields;
  for (const GenerationRequest& request :
       {request_for("[a-z]{99}", kTokens, 5), request_for("[0-9]{99}", kTokens, 6), plain}) {
    ValidRequest valid = value_or_throw(engine->validate(request));
    fields.push_back(valid.fields());
    client.submit(*engine, std::move(valid));
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    SCOPED_TRACE(i);
    expect_matching_answer(client.wait(i), fields[i]);
  }
  EXPECT_EQ(client.wait(0).token_ids.size(), kTokens);
  EXPECT_EQ(client.wait(1).token_ids.size(), kTokens);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.withheld_rows, 0);
  EXPECT_EQ(stats.grammar_masks, 2 * kTokens) << "one mask per structured token";
}

TEST(GrammarEngine, ACompleteTextEndsTheRequestWithoutAnEndToken) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  GenerationRequest request = request_for("stop", 20);
  request.sampling.min_tokens = 10;  // has no effect: the text is complete
  client.submit(*engine, request);
  client.submit(*engine, request_for("a", 1));
  EXPECT_EQ(client.wait(0).text, "stop");
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kStop);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(client.wait(0).last.stop_reason));
  EXPECT_THAT(client.wait(0).token_ids, ::testing::Not(::testing::Contains(testing::kToyEos)));
  EXPECT_EQ(client.wait(1).text, "a");
  EXPECT_EQ(client.wait(1).last.finish_reason, FinishReason::kLength) << "the limit came first";
}

// The text may be complete after a draft. No end token is sampled then either.
TEST(GrammarEngine, ARunEndsWithTheGrammar) {
  FakeModel model;
  model.num_drafts = 4;
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  std::vector<RequestFields> fields;
  for (int32_t i = 0; i < 30; ++i) {
    ValidRequest valid = value_or_throw(engine->validate(request_for("[a-z]{6}", 20, 5 + i)));
    fields.push_back(valid.fields());
    client.submit(*engine, std::move(valid));
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    SCOPED_TRACE(i);
    expect_matching_answer(client.wait(i), fields[i]);
    EXPECT_EQ(client.wait(i).text.size(), 6U);
  }
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.grammar_masks, stats.output_tokens) << "masks after refused drafts";
}

TEST(GrammarEngine, AGrammarThatNoTokenSpellsEndsItsRequestAlone) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  client.submit(*engine, request_for("[a-z]{9}", 20));
  client.submit(*engine, request_for("stopX", 20));  // no token has an X
  const RequestUpdate& last = client.wait(1).last;
  EXPECT_EQ(last.finish_reason, FinishReason::kError);
  EXPECT_TRUE(last.error_is_clients);
  EXPECT_THAT(last.error, ::testing::StartsWith("structured_outputs: no token of the vocabulary"));
  EXPECT_EQ(client.wait(0).text.size(), 9U);
}

TEST(GrammarEngine, ABadGrammarRefusesItsRequestAlone) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  client.submit(*engine, request_for("[a-z]{9}", 20));
  const auto refused = engine->validate(request_for("a(b", 20));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message, "structured_outputs: regex: at 1(2): unclosed group");
  EXPECT_EQ(client.wait(0).text.size(), 9U);
}

TEST(GrammarEngine, ChoicesShareTheGrammarAndNothingElse) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  GenerationRequest request = request_for("[a-z]{6}", 20);
  request.sampling.temperature = 1;
  request.sampling.n = 6;
  std::vector<RequestFields> fields;
  for (ValidRequest& choice : split_choices(value_or_throw(engine->validate(request)))) {
    client.submit(*engine, std::move(choice));
  }
  client.wait_all();
  std::vector<std::string> texts;
  for (size_t i = 0; i < client.size(); ++i) {
    texts.push_back(client.wait(i).text);
    EXPECT_EQ(texts.back().size(), 6U);
  }
  std::sort(texts.begin(), texts.end());
  EXPECT_NE(texts.front(), texts.back());
}

TEST(GrammarProgress, APlaceFollowsItsGrammar) {
  const std::unique_ptr<TextModel> text = make_toy_text();
  GrammarSource source(*text);
  const Grammar grammar = value_or_throw(source.compile({GrammarKind::kRegex, "[ab]c"}));
  GrammarProgress progress(kToyVocab, 2, microseconds(0));
  const int32_t place = progress.add(77, grammar);
  EXPECT_EQ(progress.request_of(place), 77U);
  progress.start(place);
  const auto settle = [&] {
    while (progress.state(place) == GrammarProgress::State::kBusy) {
      progress.wait(milliseconds(100));
    }
    return progress.state(place);
  };
  ASSERT_EQ(settle(), GrammarProgress::State::kReady);
  const std::span<const uint32_t> mask = progress.use_masks(place, 1, 7);
  ASSERT_EQ(mask.size(), kWords);
  EXPECT_EQ(mask[0], 3U << 2) << "the tokens a and b";  // ids 2 and 3
  EXPECT_EQ(progress.state(place), GrammarProgress::State::kStale);
  progress.accept(place, std::vector{3});
  ASSERT_EQ(settle(), GrammarProgress::State::kReady);
  EXPECT_EQ(progress.use_masks(place, 1, 8)[0], 1U << 4) << "c";
  progress.accept(place, std::vector{4});
  ASSERT_EQ(settle(), GrammarProgress::State::kEnded);
  std::vector<int32_t> finished;
  progress.take_finished(finished);
  EXPECT_THAT(finished, ::testing::ElementsAre(place));
  EXPECT_EQ(progress.stats().num_masks, 2);
  progress.remove_request(77);
  EXPECT_FALSE(progress.is_busy(77));
  EXPECT_EQ(progress.add(78, grammar), place) << "the place is free again";
}

// "abc" or "abd", then an x. Masks are made after each draft as far as the grammar accepts the drafts.
TEST(GrammarProgress, MasksBehindDrafts) {
  constexpr TokenId kA = 2;
  constexpr TokenId kB = 3;
  constexpr TokenId kC = 4;
  constexpr TokenId kD = 5;
  constexpr TokenId kX = 2 + ('x' - 'a');
  const std::unique_ptr<TextModel> text = make_toy_text();
  GrammarSource source(*text);
  const Grammar grammar = value_or_throw(source.compile({GrammarKind::kRegex, "a(?:b[cd])+x"}));
  GrammarProgress progress(kToyVocab, 2, microseconds(0), 3);
  const int32_t place = progress.add(1, grammar);
  progress.start(place);
  const auto words_of = [&](int32_t max_masks) {
    while (progress.state(place) == GrammarProgress::State::kBusy) {
      progress.wait(milliseconds(100));
    }
    const std::span<const uint32_t> masks = progress.use_masks(place, max_masks, 1);
    std::vector<uint32_t> first_words;
    for (size_t i = 0; i < masks.size(); i += kWords) {
      first_words.push_back(masks[i]);
    }
    return first_words;
  };
  const auto bits = [](std::initializer_list<TokenId> ids) {
    uint32_t word = 0;
    for (const TokenId id : ids) {
      word |= 1U << static_cast<uint32_t>(id);
    }
    return word;
  };
  EXPECT_THAT(words_of(4), ElementsAre(bits({kA}))) << "a prompt has no known drafts";
  progress.accept(place, std::vector{kA}, std::vector{kB, kC, kX});
  EXPECT_THAT(words_of(4), ElementsAre(bits({kB}), bits({kC, kD}), bits({kB, kX})))
      << "the text is complete after the x";
  progress.accept(place, std::vector{kB, kD}, std::vector{kB, kB, kC});
  EXPECT_THAT(words_of(4), ElementsAre(bits({kB, kX}), bits({kC, kD})))
      << "the grammar refuses the second b";
  progress.accept(place, std::vector{kB}, std::vector{kC, kB, kC});
  EXPECT_THAT(words_of(2), ElementsAre(bits({kC, kD}), bits({kB, kX})))
      << "the step has fewer logits";
  progress.accept(place, std::vector{kC, kB}, std::vector{-1, -1, -1});
  EXPECT_THAT(words_of(4), ElementsAre(bits({kC, kD})));
  {
    const ScopedCheckThrows throws;
    EXPECT_THROW(progress.accept(place, std::vector{kC, kX}), CheckFailure)
        << "only one token had a mask";
  }
  progress.accept(place, std::vector{kC});
  EXPECT_THAT(words_of(4), ElementsAre(bits({kB, kX})));
  EXPECT_EQ(progress.stats().num_masks, 1 + 3 + 2 + 4 + 1 + 1);
}

// A draft may end the section. Masks of the grammar then follow masks that allow everything.
TEST(GrammarProgress, AThinkingSectionNeedsNoMasks) {
  constexpr uint32_t kAll = ~0U;
  const TokenId a = testing::toy_token("a");
  const TokenId b = testing::toy_token("b");
  const TokenId end = testing::toy_token("</think>");
  const std::unique_ptr<TextModel> text = make_toy_text();
  GrammarSource source(*text);
  const Grammar grammar = value_or_throw(
      source.compile({.kind = GrammarKind::kRegex, .text = "a[b]c", .thinking = Thinking::kOpen}));
  GrammarProgress progress(kToyVocab, 2, microseconds(0), 3);
  const int32_t place = progress.add(1, grammar);
  progress.start(place);
  const auto words_of = [&](int32_t max_masks) {
    while (progress.state(place) == GrammarProgress::State::kBusy) {
      progress.wait(milliseconds(100));
    }
    const std::span<const uint32_t> masks = progress.use_masks(place, max_masks, 1);
    std::vector<uint32_t> first_words;
    for (size_t i = 0; i < masks.size(); i += kWords) {
      first_words.push_back(masks[i]);
    }
    return first_words;
  };
  const auto bit = [](TokenId id) { return 1U << static_cast<uint32_t>(id); };
  EXPECT_THAT(words_of(1), ElementsAre());
  progress.accept(place, std::vector{b}, std::vector{b, b, a});
  EXPECT_THAT(words_of(4), ElementsAre());
  EXPECT_EQ(progress.stats().num_masks, 0);
  EXPECT_TRUE(progress.fills().since({}).empty());
  progress.accept(place, std::vector{b, b, a, b}, std::vector{b, end, a});
  EXPECT_THAT(words_of(4), ElementsAre(kAll, kAll, bit(a), bit(b)));
  progress.accept(place, std::vector{b}, std::vector{b, -1, -1});
  EXPECT_THAT(words_of(4), ElementsAre(kAll, kAll)) << "there is no logit after a missing draft";
  progress.accept(place, std::vector{b, end}, std::vector{b, b, b});
  EXPECT_THAT(words_of(4), ElementsAre(bit(a))) << "the grammar has not seen a b";
  progress.accept(place, std::vector{a});
  EXPECT_THAT(words_of(4), ElementsAre(bit(b)));
}

// No mask is filled yet for requests that wait for a row. Among the others, running requests come first.
TEST(GrammarProgress, NewcomersComeBehindWhoRuns) {
  const std::unique_ptr<TextModel> text = make_toy_text();
  GrammarSource source(*text);
  const Grammar grammar = value_or_throw(source.compile({GrammarKind::kRegex, "[ab]+"}));
  GrammarProgress progress(kToyVocab, 1, milliseconds(20));
  const auto wait_for_masks = [&](int64_t n) {
    while (progress.stats().num_masks < n) {
      progress.wait(milliseconds(100));
    }
  };
  const int32_t runs = progress.add(1, grammar);
  std::vector<int32_t> others;
  for (uint64_t request = 2; request <= 10; ++request) {
    others.push_back(progress.add(request, grammar));
  }
  progress.start(runs);
  wait_for_masks(1);
  progress.use_masks(runs, 1, 1);
  for (const int32_t place : others) {
    EXPECT_EQ(progress.state(place), GrammarProgress::State::kWaiting);
    EXPECT_FALSE(progress.is_busy(progress.request_of(place)));
    if (place != others.back()) {
      progress.start(place);
    }
  }
  progress.accept(runs, std::vector{3});
  wait_for_masks(10);
  const std::vector<MaskFill> fills = progress.fills().since({});
  ASSERT_EQ(fills.size(), 10U);
  EXPECT_EQ(fills.front().request, 1U);
  EXPECT_NE(fills.back().request, 1U) << "eight masks were requested before its second one";
  EXPECT_EQ(progress.state(others.back()), GrammarProgress::State::kWaiting);
}

TEST(GrammarProgress, AWrongTokenFailsThePlace) {
  const std::unique_ptr<TextModel> text = make_toy_text();
  GrammarSource source(*text);
  GrammarProgress progress(kToyVocab, 1, microseconds(0));
  const int32_t place =
      progress.add(1, value_or_throw(source.compile({GrammarKind::kRegex, "ab"})));
  progress.start(place);
  while (progress.state(place) == GrammarProgress::State::kBusy) {
    progress.wait(milliseconds(100));
  }
  progress.use_masks(place, 1, 1);
  progress.accept(place, std::vector{9});
  while (progress.state(place) == GrammarProgress::State::kBusy) {
    progress.wait(milliseconds(100));
  }
  EXPECT_EQ(progress.state(place), GrammarProgress::State::kFailed);
}

}  // namespace
}  // namespace warprow
