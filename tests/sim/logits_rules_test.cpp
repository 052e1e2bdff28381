// SPDX-License-Identifier: Apache-2.0
// Rules of the engine's owner on logits: what they see, what they change, and when they are skipped.
#include "runner/features/logits_rules.h"

#include "tests/support/model_rig.h"
#include "tests/support/random_model.h"
#include "tests/support/temp_dir.h"
#include "worker/ruled_options.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::ModelRig;
using test::RandomModel;
using test::RigOptions;
using test::RigResult;

constexpr int32_t kRulesVocab = 512;
constexpr TokenId kFavourite = 77;

class Rule final : public LogitsRule {
 public:
  Rule(bool changes_argmax, std::function<bool(const RowLogits&)> change)
      : changes_argmax_(changes_argmax), change_(std::move(change)) {}

  [[nodiscard]] bool changes_argmax() const override { return changes_argmax_; }
  bool apply(const RowLogits& row) override {
    const std::lock_guard lock(mutex_);
    if (row.tokens.size() > 1 &&
        row.tokens[1] == (row.tokens[0] + 17) %
                             (kRulesVocab - 1)) {  // a prompt of run(), not one of the warm-up
      histories.emplace(row.tokens.begin(), row.tokens.end());
      prompt_lens.insert(row.prompt_len);
    }
    return change_(row);
  }

  std::set<std::vector<TokenId>> histories;
  std::set<int32_t> prompt_lens;

 private:
  bool changes_argmax_;
  std::function<bool(const RowLogits&)> change_;
  std::mutex mutex_;
};

bool leave(const RowLogits& /*row*/) { return true; }
bool prefer_favourite(const RowLogits& row) {
  row.logits[kFavourite] = 1000.0F;
  return true;
}

// Nine requests, every third of them random, with prompts of several lengths.
std::map<uint64_t, RigResult> run(const LogitsRules& rules,
                                  const std::string& cudagraph_mode = "none",
                                  bool all_greedy = false) {
  const test::TempDir dir;
  RigOptions options;
  options.config.model = RandomModel{.num_layers = 2}.write(dir);
  options.config.kv_cache_memory_bytes = int64_t{8} << 20;
  options.config.max_model_len = 128;
  options.config.max_num_seqs = 4;
  options.config.max_num_batched_tokens = 16;
  options.config.cudagraph_mode = cudagraph_mode;
  options.config.threads = options.device.num_threads = 1;
  options.runner = ruled_options(rules);
  ModelRig rig(options);
  for (int32_t i = 0; i < 9; ++i) {
    Request request;
    request.id = static_cast<uint64_t>(i);
    for (int32_t t = 0; t < 2 + 4 * i; ++t) {
      request.prompt.push_back((i * 31 + t * 17) % (kRulesVocab - 1));
    }
    request.max_tokens = 6;
    request.params.num_logprobs = 1;
    if (i % 3 == 1 && !all_greedy) {
      request.params.temperature = 0.8F;
      request.params.seed = static_cast<uint64_t>(i);
    }
    rig.add(request);
  }
  rig.run();
  return rig.results();
}

class LogitsRulesTest : public ::testing::TestWithParam<const char*> {};

TEST_P(LogitsRulesTest, SeeEveryTokenAndChangeEveryRow) {
  Rule watching(true, leave);
  const auto expected = run({});
  const auto watched = run({&watching}, GetParam());
  size_t num_histories = 0;
  for (const auto& [id, result] : expected) {
    EXPECT_EQ(watched.at(id).tokens, result.tokens) << id;
    std::vector<TokenId> history;
    for (int32_t t = 0; t < 2 + 4 * static_cast<int32_t>(id); ++t) {
      history.push_back((static_cast<int32_t>(id) * 31 + t * 17) % (kRulesVocab - 1));
    }
    for (const TokenId token : result.tokens) {
      EXPECT_TRUE(watching.histories.contains(history)) << id << " at " << history.size();
      history.push_back(token);
      ++num_histories;
    }
  }
  EXPECT_EQ(num_histories, 54U);
  EXPECT_TRUE(watching.prompt_lens.contains(2) && watching.prompt_lens.contains(34));
  Rule preferring(true, prefer_favourite);
  for (const auto& [id, result] : run({&preferring}, GetParam())) {
    EXPECT_EQ(result.tokens, std::vector<TokenId>(6, kFavourite)) << id;
    EXPECT_NEAR(result.logprobs.front().logprob, 0.0F, 1e-6);  // raw logprobs come later
  }
}

INSTANTIATE_TEST_SUITE_P(Graphs, LogitsRulesTest, ::testing::Values("none", "full"));

TEST(LogitsRules, ApplyInOrderAndOnlyWhereTheyMatter) {
  Rule preferring(false,
                  prefer_favourite);  // which is a lie, so that one sees the rows that skip it
  const auto expected = run({});
  const auto results = run({&preferring});
  for (const auto& [id, result] : results) {
    const std::vector<TokenId> wanted =
        id % 3 == 1 ? std::vector<TokenId>(6, kFavourite) : expected.at(id).tokens;
    EXPECT_EQ(result.tokens, wanted) << id;
  }
  Rule greedy_only(false, leave);
  run({&greedy_only}, "none", true);
  EXPECT_TRUE(greedy_only.histories.empty());
  Rule forbidding(true, [](const RowLogits& row) {
    row.logits[kFavourite] = -std::numeric_limits<float>::infinity();
    return true;
  });
  for (const auto& [id, result] : run({&preferring, &forbidding})) {
    EXPECT_EQ(std::ranges::count(result.tokens, kFavourite), 0) << id;
  }
}

TEST(LogitsRules, AFailureEndsItsRequestAlone) {
  Rule failing(true, [](const RowLogits& row) { return row.prompt_len != 6; });
  for (const auto& [id, result] : run({&failing})) {
    EXPECT_EQ(result.reason, id == 1 ? FinishReason::kError : FinishReason::kLength) << id;
  }
}

}  // namespace
}  // namespace warprow
