// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/token_lists.h"

#include "kernels/sample/rules/bad_words.h"
#include "tests/kernels/cpu_harness.h"
#include "tests/kernels/token_rows.h"

#include <algorithm>
#include <bit>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::draw;
using testing::Drawn;
using testing::kInf;
using testing::random_floats;
using testing::TokenRows;

constexpr int64_t kWidth = 64;
constexpr int32_t kBad = -static_cast<int32_t>(SampleError::kBadLogits);
constexpr int32_t kNothing = -static_cast<int32_t>(SampleError::kNothingLeft);

struct Lists {
  std::set<int32_t> allowed{};
  std::map<int32_t, float> biases{};
  std::vector<std::vector<int32_t>> bad_words{};

  [[nodiscard]] bool empty() const {
    return allowed.empty() && biases.empty() && bad_words.empty();
  }
  // Appends the row, padded with values that must not be read.
  void pack(std::vector<int32_t>& out) const {
    std::vector<int32_t> words(allowed.begin(), allowed.end());
    for (const auto& [id, bias] : biases) {
      words.insert(words.end(), {id, std::bit_cast<int32_t>(bias)});
    }
    const auto before = static_cast<int32_t>(words.size());
    for (const auto& word : bad_words) {
      words.push_back(static_cast<int32_t>(word.size()));
      words.insert(words.end(), word.begin(), word.end());
    }
    words.insert(words.begin(),
                 {static_cast<int32_t>(allowed.size()),
                  static_cast<int32_t>(biases.size()),
                  static_cast<int32_t>(words.size()) - before,
                  0});
    ASSERT_LE(words.size(), kWidth);
    words.resize(kWidth, -123456);
    out.insert(out.end(), words.begin(), words.end());
  }
};

struct ListBatch {
  TokenRows rows;
  std::vector<SampleParams> params{};
  std::vector<int32_t> lists{};
  std::vector<int32_t> stop_ids{};
  std::vector<float> logits{};

  explicit ListBatch(int64_t n) : rows(n) {}
  void add(const std::vector<int32_t>& tokens,
           int32_t prompt_len,
           int32_t prefill_len,
           SampleParams p,
           const Lists& row_lists,
           const std::vector<float>& x) {
    rows.add(tokens, prompt_len, prefill_len);
    p.flags = row_lists.empty() ? 0 : kFlagTokenLists;
    params.push_back(p);
    row_lists.pack(lists);
    logits.insert(logits.end(), x.begin(), x.end());
  }
  [[nodiscard]] Drawn run(int32_t threads = 1) const {
    const auto n = static_cast<int64_t>(params.size());
    const View<const int32_t, 2> stops =
        stop_ids.empty() ? View<const int32_t, 2>{} : make_view(stop_ids.data(), n, 2);
    return draw(
        rows.view(), params, rows.len, logits, threads, stops, make_view(lists.data(), n, kWidth));
  }
};

// One greedy row whose prompt ends with 5 and which has these outputs.
int32_t draw_one(const std::vector<int32_t>& outputs, const Lists& lists, std::vector<float> x) {
  std::vector<int32_t> tokens = {9, 5};
  tokens.insert(tokens.end(), outputs.begin(), outputs.end());
  ListBatch batch(1);
  batch.add(tokens, 2, 2, {}, lists, x);
  return batch.run().tokens[0];
}

TEST(TokenLists, AGreedyRowEmitsTheRunnerUpOfABadWord) {
  EXPECT_EQ(draw_one({}, {.bad_words = {{2}}}, {1, 3, 9, 2}), 1);
}

TEST(TokenLists, ABadWordIsMatchedOverOutputsOnly) {
  const std::vector<float> x = {0, 0, 0, 0, 0, 0, 8, 4};
  const Lists lists{.bad_words = {{5, 6}}};
  EXPECT_EQ(draw_one({}, lists, x), 6) << "the 5 belongs to the prompt";
  EXPECT_EQ(draw_one({1, 5}, lists, x), 7);
  EXPECT_EQ(draw_one({5, 1}, lists, x), 6);
  EXPECT_EQ(draw_one({5}, {.bad_words = {{9, 5, 6}}}, x), 6) << "longer than the output";
}

TEST(TokenLists, OutputsBeforeAPreemptionCountAsOutputs) {
  ListBatch batch(1);
  batch.add({9, 5, 3, 5}, 2, 4, {}, {.bad_words = {{3, 5, 1}}}, {0, 8, 4});
  EXPECT_EQ(batch.run().tokens[0], 2);
}

TEST(TokenLists, ABiasBringsNoForbiddenTokenBack) {
  EXPECT_EQ(draw_one({}, {.allowed = {0, 1}, .biases = {{2, 100}}}, {1, 2, 9}), 1);
  EXPECT_EQ(draw_one({}, {.biases = {{2, 100}}, .bad_words = {{2}}}, {1, 2, 9}), 1);
  EXPECT_EQ(draw_one({}, {.allowed = {0, 1}, .biases = {{0, 2}}}, {1, 2, 9}), 0);
}

TEST(TokenLists, BiasComesBeforePenalties) {
  ListBatch batch(1);
  SampleParams p;
  p.repetition_penalty = 4;
  // (1 + 5) / 4 = 1.5 is below 2; 1 / 4 + 5 would be above it.
  batch.add({0}, 1, 1, p, {.biases = {{0, 5}}}, {1, 2});
  EXPECT_EQ(batch.run().tokens[0], 1);
}

TEST(TokenLists, NothingLeftFailsItsRowAlone) {
  ListBatch batch(4);
  SampleParams p;
  p.min_tokens = 1;
  batch.stop_ids = {1, 2, 1, 2, 1, 2, 1, 2};
  batch.add({0}, 1, 1, p, {.allowed = {2}}, {1, 2, 9});  // the only allowed id is EOS
  batch.add({0}, 1, 1, p, {.allowed = {1, 2}}, {1, 2, 9});
  batch.add({0}, 1, 1, {}, {.bad_words = {{0}, {1}, {2}}}, {1, 2, 9});
  batch.add({0}, 1, 1, p, {.allowed = {2}}, {1, kInf, 9});
  const Drawn drawn = batch.run();
  EXPECT_EQ(drawn.tokens, (std::vector<int32_t>{kNothing, 1, kNothing, kBad}));
  EXPECT_EQ(drawn.errors, (std::vector<int32_t>{2, 0, 2, 1}));
}

TEST(TokenLists, IdsOutsideTheVocabularyAreSkipped) {
  const Lists lists{
      .allowed = {-1, 1, 2, 70}, .biases = {{-5, 1}, {3, 1}}, .bad_words = {{-1}, {3}, {2}}};
  EXPECT_EQ(draw_one({}, lists, {9, 1, 8}), 1);
}

TEST(TokenLists, LogprobsStayThoseOfTheRawLogits) {
  ListBatch batch(1);
  SampleParams p;
  p.num_logprobs = 0;
  batch.add({0}, 1, 1, p, {.allowed = {0}, .biases = {{0, 50}}}, {0, 0, std::log(2.0F)});
  const Drawn drawn = batch.run();
  EXPECT_EQ(drawn.tokens[0], 0);
  EXPECT_NEAR(drawn.logprobs[0], std::log(0.25), 1e-6);
  EXPECT_EQ(drawn.ranks[0], 3);
}

// Logits after the token rules, applied in order and as defined.
std::vector<float> lists_reference(const std::vector<int32_t>& tokens,
                                   int32_t prompt_len,
                                   const SampleParams& p,
                                   const Lists& lists,
                                   const std::vector<int32_t>& stop_ids,
                                   std::vector<float> x) {
  const std::vector<int32_t> outputs(tokens.begin() + prompt_len, tokens.end());
  for (int32_t id = 0; id < static_cast<int32_t>(x.size()); ++id) {
    float& l = x[static_cast<size_t>(id)];
    bool masked = !lists.allowed.empty() && lists.allowed.count(id) == 0;
    for (const auto& word : lists.bad_words) {
      auto text = outputs;
      text.push_back(id);
      masked |= text.size() >= word.size() && std::equal(word.rbegin(), word.rend(), text.rbegin());
    }
    masked |= static_cast<int32_t>(outputs.size()) < p.min_tokens &&
              std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
    l = masked ? -kInf : l + (lists.biases.count(id) > 0 ? lists.biases.at(id) : 0.0F);
    if (std::find(tokens.begin(), tokens.end(), id) != tokens.end()) {
      l = l > 0 ? l / p.repetition_penalty : l * p.repetition_penalty;
      const auto count = static_cast<float>(std::count(outputs.begin(), outputs.end(), id));
      l -= p.frequency_penalty * count;
      l -= count > 0 ? p.presence_penalty : 0.0F;
    }
  }
  return x;
}

// Each rule applies in half of the cases, so every pair of rules occurs often.
TEST(TokenLists, MixedRowsDrawAsFromLogitsUnderTheDefinition) {
  constexpr int32_t kVocab = 12;
  constexpr int32_t kRows = 4000;
  std::mt19937 random(5);
  const auto below = [&](int32_t limit) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(limit));
  };
  const auto half = [&] { return below(2) == 0; };
  ListBatch ruled(kRows);
  ListBatch plain(kRows);
  int32_t num_changed = 0;
  for (int32_t i = 0; i < kRows; ++i) {
    std::vector<int32_t> tokens(static_cast<size_t>(1 + below(30)));
    std::generate(tokens.begin(), tokens.end(), [&] { return below(4); });
    const auto len = static_cast<int32_t>(tokens.size());
    const int32_t prompt = 1 + below(len);
    const int32_t prefill = prompt + below(len - prompt + 1);
    Lists lists;
    for (int32_t n = half() ? 1 + below(8) : 0; n > 0; --n) {
      lists.allowed.insert(below(kVocab));
    }
    for (int32_t n = half() ? 1 + below(5) : 0; n > 0; --n) {
      lists.biases[below(kVocab)] = 0.5F * static_cast<float>(below(21) - 10);
    }
    for (int32_t n = half() ? 1 + below(5) : 0; n > 0; --n) {
      std::vector<int32_t> word(static_cast<size_t>(below(3)));
      std::generate(word.begin(), word.end(), [&] { return below(4); });
      word.push_back(below(kVocab));
      lists.bad_words.push_back(word);
    }
    SampleParams draws;
    draws.temperature = half() ? 0.0F : 0.8F;
    draws.top_k = half() ? 0 : 5;
    draws.top_p = half() ? 1.0F : 0.9F;
    draws.min_p = half() ? 0.0F : 0.1F;
    draws.seed = random();
    SampleParams p = draws;
    p.min_tokens = half() ? 0 : 5;
    p.repetition_penalty = half() ? 1.0F : 1.5F;
    p.frequency_penalty = half() ? 0.0F : 0.5F;
    p.presence_penalty = half() ? 0.0F : -0.25F;
    const int32_t stop_id = below(kVocab);
    ruled.stop_ids.insert(ruled.stop_ids.end(), {1, stop_id});
    const auto x = random_floats(kVocab, static_cast<uint32_t>(i), 3.0F);
    const auto y = lists_reference(tokens, prompt, p, lists, {stop_id}, x);
    num_changed += x != y ? 1 : 0;
    ruled.add(tokens, prompt, prefill, p, lists, x);
    plain.add(tokens, prompt, prefill, draws, {}, y);
  }
  EXPECT_GT(num_changed, kRows / 2);
  const Drawn got = ruled.run(2);
  const Drawn want = plain.run();
  int32_t num_nothing = 0;
  for (size_t i = 0; i < got.tokens.size(); ++i) {
    const bool nothing = want.tokens[i] == kBad;
    num_nothing += nothing ? 1 : 0;
    ASSERT_EQ(got.tokens[i], nothing ? kNothing : want.tokens[i]) << i;
  }
  EXPECT_GT(num_nothing, 10);
  EXPECT_LT(num_nothing, kRows / 10);
}

}  // namespace
}  // namespace warprow
