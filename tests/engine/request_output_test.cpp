// SPDX-License-Identifier: Apache-2.0
#include "engine/request_output.h"

#include "tests/engine/toy_engine.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

constexpr TokenId kStop = 40;  // "stop"
constexpr TokenId kSt = 41;
constexpr TokenId kOp = 42;
constexpr TokenId kHalf1 = 43;  // "é"
constexpr TokenId kHalf2 = 44;
constexpr TokenId letter(char c) { return 2 + (c - 'a'); }

// The output of one request, fed by hand.
class Fixture {
 public:
  explicit Fixture(RequestFields fields = {}) : text_(testing::make_toy_text()) {
    fields.prompt_token_ids = {5, 6};
    output_ = std::make_unique<RequestOutput>(
        77, fields, text_->tokenizer, [this](const RequestUpdate& update) {
          updates_.push_back(update);
        });
  }

  bool take(const std::vector<TokenId>& tokens,
            FinishReason reason = FinishReason::kNone,
            TokenId stop_token_id = -1) {
    ModelRunnerOutput step;
    step.token_ids = tokens;
    OutputBatch batch;
    OutputDelta& delta = batch.deltas.emplace_back();
    delta.id = 77;
    delta.reason = reason;
    delta.stop_token_id = stop_token_id;
    delta.tokens = {0, static_cast<int32_t>(tokens.size())};
    batch.copy_from(step, delta);
    return output_->take(batch, delta);
  }
  RequestOutput& output() { return *output_; }
  [[nodiscard]] const RequestUpdate& last() const { return updates_.back(); }
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const RequestUpdate& update : updates_) {
      all += update.text;
    }
    return all;
  }

 private:
  std::unique_ptr<TextModel> text_;
  std::vector<RequestUpdate> updates_;
  std::unique_ptr<RequestOutput> output_;
};

RequestFields with_stop(std::vector<std::string> stop, bool include = false) {
  RequestFields fields;
  fields.stop = std::move(stop);
  fields.include_stop_str_in_output = include;
  return fields;
}

TEST(RequestOutput, TextComesInWholeCharacters) {
  Fixture f;
  EXPECT_FALSE(f.take({letter('a')}));
  EXPECT_EQ(f.last().text, "a");
  EXPECT_FALSE(f.take({kHalf1}));
  EXPECT_EQ(f.last().text, "");
  EXPECT_EQ(f.last().token_ids, std::vector<TokenId>{kHalf1});
  EXPECT_FALSE(f.take({kHalf2}));
  EXPECT_EQ(f.last().text, "\u00e9");
  EXPECT_TRUE(f.take({kHalf1}, FinishReason::kLength));
  EXPECT_EQ(f.last().text, "\ufffd");
  EXPECT_EQ(f.last().finish_reason, FinishReason::kLength);
  EXPECT_EQ(f.last().num_output_tokens, 4);
  EXPECT_EQ(f.last().num_prompt_tokens, 2);
  EXPECT_EQ(f.last().id, 77U);
}

TEST(RequestOutput, EosIsATokenAndNoText) {
  Fixture f;
  f.take({letter('a')});
  EXPECT_TRUE(f.take({testing::kToyEos}, FinishReason::kStop));
  EXPECT_EQ(f.text(), "a");
  EXPECT_EQ(f.last().token_ids, std::vector<TokenId>{testing::kToyEos});
  EXPECT_EQ(f.last().finish_reason, FinishReason::kStop);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(f.last().stop_reason));
}

TEST(RequestOutput, SpecialTokensShowWhenAskedFor) {
  RequestFields fields;
  fields.skip_special_tokens = false;
  Fixture f(fields);
  f.take({testing::kToyEos});  // not the end, because of ignore_eos
  EXPECT_EQ(f.last().text, "<eos>");
}

TEST(RequestOutput, StopTokenIsNamedAndHidden) {
  Fixture f;
  EXPECT_TRUE(f.take({letter('q')}, FinishReason::kStop, letter('q')));
  EXPECT_EQ(f.text(), "");
  EXPECT_EQ(std::get<int64_t>(f.last().stop_reason), letter('q'));
  EXPECT_EQ(f.last().token_ids, std::vector<TokenId>{letter('q')});

  Fixture shown(with_stop({}, true));
  shown.take({letter('q')}, FinishReason::kStop, letter('q'));
  EXPECT_EQ(shown.text(), "q");
}

TEST(RequestOutput, StopStringAcrossTokens) {
  Fixture f(with_stop({"never", "stop"}));
  EXPECT_FALSE(f.take({letter('x')}));
  EXPECT_FALSE(f.take({kSt}));
  EXPECT_EQ(f.text(), "x") << "text that may become a stop string is held back";
  EXPECT_TRUE(f.take({kOp}));
  EXPECT_EQ(f.text(), "x");
  EXPECT_EQ(f.last().finish_reason, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(f.last().stop_reason), "stop");
  EXPECT_EQ(f.last().num_output_tokens, 3);
}

// As in vLLM, text of the first min_tokens outputs completes no stop string, but one may begin there.
TEST(RequestOutput, MinTokensHoldsBackStopStrings) {
  RequestFields fields;
  fields.stop = {"stop"};
  fields.params.min_tokens = 2;
  Fixture early(fields);
  EXPECT_FALSE(early.take({kStop}));
  EXPECT_FALSE(early.take({letter('a')}));
  EXPECT_EQ(early.text(), "stopa");
  EXPECT_TRUE(early.take({kStop}));
  EXPECT_EQ(early.text(), "stopa");
  EXPECT_EQ(early.last().finish_reason, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(early.last().stop_reason), "stop");

  Fixture across(fields);
  EXPECT_FALSE(across.take({letter('a'), kSt}));
  EXPECT_TRUE(across.take({kOp}));
  EXPECT_EQ(across.text(), "a");

  fields.params.min_tokens = 3;
  Fixture later(fields);
  EXPECT_FALSE(later.take({letter('a'), kSt, kOp}));
  EXPECT_FALSE(later.take({letter('b')}));
  EXPECT_EQ(later.text(), "astopb");
}

TEST(RequestOutput, StopStringMayBeShown) {
  Fixture f(with_stop({"to"}, true));
  EXPECT_TRUE(f.take({letter('x'), kStop}));
  EXPECT_EQ(f.text(), "xsto");
}

TEST(RequestOutput, TokensAfterAStopStringAreDropped) {
  Fixture f(with_stop({"ab"}));
  EXPECT_TRUE(f.take({letter('a'), letter('b'), letter('c')}));
  EXPECT_EQ(f.text(), "");
  EXPECT_EQ(f.last().token_ids, (std::vector<TokenId>{letter('a'), letter('b')}));
  EXPECT_EQ(f.last().num_output_tokens, 2);
}

TEST(RequestOutput, AStopStringCutsARunAndWhatComesWithIt) {
  RequestFields fields = with_stop({"ab"});
  fields.params.num_logprobs = 0;
  Fixture f(fields);
  ModelRunnerOutput step;
  step.token_ids = {letter('a'), letter('b'), letter('c'), letter('d')};
  step.has_logprobs = true;
  step.logprobs.resize(4);
  step.logprobs[1].logprob = -2.5F;
  step.hidden_states = RowTensors{2, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}};
  OutputBatch batch;
  OutputDelta& delta = batch.deltas.emplace_back();
  delta.tokens = {0, 4};
  delta.hidden = {0, 5};  // one state of the prompt, then those of the outputs
  batch.copy_from(step, delta);
  EXPECT_TRUE(f.output().take(batch, delta));
  EXPECT_EQ(f.last().token_ids, (std::vector<TokenId>{letter('a'), letter('b')}));
  EXPECT_EQ(f.last().num_output_tokens, 2);
  ASSERT_EQ(f.last().logprobs.size(), 2U);
  EXPECT_EQ(f.last().logprobs[1].logprob, -2.5F);
  EXPECT_EQ(f.last().hidden_states, (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(f.last().finish_reason, FinishReason::kStop);
}

TEST(RequestOutput, AStopTokenEndsARunOfText) {
  Fixture f;
  EXPECT_TRUE(f.take({letter('a'), letter('b'), letter('q')}, FinishReason::kStop, letter('q')));
  EXPECT_EQ(f.text(), "ab");
  EXPECT_EQ(f.last().num_output_tokens, 3);
  EXPECT_EQ(std::get<int64_t>(f.last().stop_reason), letter('q'));
}

TEST(RequestOutput, HeldTextIsGivenOutAtTheEnd) {
  Fixture f(with_stop({"stop!"}));
  f.take({kSt});
  EXPECT_TRUE(f.take({kOp}, FinishReason::kLength));
  EXPECT_EQ(f.text(), "stop");
  EXPECT_EQ(f.last().finish_reason, FinishReason::kLength);

  Fixture aborted(with_stop({"stop!"}));
  aborted.take({kStop});
  aborted.output().end(FinishReason::kAbort, "");
  EXPECT_EQ(aborted.text(), "stop");
  EXPECT_EQ(aborted.last().finish_reason, FinishReason::kAbort);
}

TEST(RequestOutput, StopStringWinsOverLengthAtTheSameToken) {
  Fixture f(with_stop({"b"}));
  EXPECT_TRUE(f.take({letter('b')}, FinishReason::kLength));
  EXPECT_EQ(f.last().finish_reason, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(f.last().stop_reason), "b");
}

TEST(RequestOutput, ErrorCarriesItsText) {
  Fixture f;
  f.output().end(FinishReason::kError, "out of luck");
  EXPECT_EQ(f.last().finish_reason, FinishReason::kError);
  EXPECT_EQ(f.last().error, "out of luck");
  EXPECT_EQ(f.last().num_output_tokens, 0);
}

}  // namespace
}  // namespace warprow
