// SPDX-License-Identifier: Apache-2.0
// A beam search on a tiny model against one in doubles, and how a search ends early.
#include "engine/beam_search.h"

#include "executor/make_executor.h"
#include "tests/engine/toy_engine.h"
#include "tests/support/decoder_oracle.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/temp_dir.h"
#include "text/text_model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using test::Doubles;
using testing::FakeModel;
using testing::greedy_request;
using testing::kToyEos;
using testing::kToyVocab;
using testing::make_toy_engine;

constexpr int32_t kPromptLen = 21;  // more than a block, so later tokens find a prefix

// Waits for the updates of all choices.
class Choices {
 public:
  explicit Choices(size_t width) : updates_(width), counts_(width) {}

  [[nodiscard]] BeamSearch::OnChoice on_choice() {
    return [this](size_t choice, const RequestUpdate& update) {
      const std::scoped_lock lock(mutex_);
      updates_[choice] = update;
      ++counts_[choice];
      changed_.notify_all();
    };
  }
  const std::vector<RequestUpdate>& wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return std::ranges::find(counts_, 0) == counts_.end(); });
    return updates_;
  }
  [[nodiscard]] bool each_once() const {
    return std::ranges::all_of(counts_, [](int count) { return count == 1; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RequestUpdate> updates_;
  std::vector<int> counts_;
};

struct Sequence {
  std::vector<TokenId> ids;
  double cum_logprob = 0;
  double score = 0;
};

// The search by its definition, over the whole vocabulary. Notes how close a decision came to another one.
class Reference {
 public:
  Reference(const test::OracleModel& model, const BeamLimits& limits)
      : oracle_(model), limits_(limits) {}

  std::vector<Sequence> search(const std::vector<TokenId>& prompt) {
    std::vector<Sequence> live{{prompt}};
    std::vector<Sequence> ended;
    for (int64_t step = 0; step < limits_.max_tokens; ++step) {
      std::vector<Sequence> next;
      for (const Sequence& beam : live) {
        const Doubles logprobs = log_softmax(oracle_.logits(beam.ids).back());
        const std::vector<TokenId> order = best_first(logprobs);
        const auto considered = static_cast<size_t>(2 * limits_.width);
        note_gap(logprobs[id(order[considered - 1])], logprobs[id(order[considered])]);
        for (size_t i = 0; i < order.size(); ++i) {
          Sequence grown = beam;
          grown.ids.push_back(order[i]);
          grown.cum_logprob += logprobs[id(order[i])];
          const bool is_eos = order[i] == kToyEos;
          const auto length = static_cast<double>(grown.ids.size() - (is_eos ? 1 : 0));
          grown.score = grown.cum_logprob / std::pow(length, limits_.length_penalty);
          if (!is_eos || limits_.ignore_eos) {
            next.push_back(grown);
          } else if (i < considered) {
            ended.push_back(grown);
          }
        }
      }
      live = best_of(next);
    }
    num_ended = ended.size();
    ended.insert(ended.end(), live.begin(), live.end());
    return best_of(ended);
  }

  double closest = std::numeric_limits<double>::infinity();
  size_t num_ended = 0;

 private:
  static size_t id(TokenId token) { return static_cast<size_t>(token); }

  static Doubles log_softmax(const Doubles& logits) {
    double sum = 0;
    const double top = *std::ranges::max_element(logits);
    for (const double logit : logits) {
      sum += std::exp(logit - top);
    }
    Doubles out;
    for (const double logit : logits) {
      out.push_back(logit - top - std::log(sum));
    }
    return out;
  }
  static std::vector<TokenId> best_first(const Doubles& logprobs) {
    std::vector<TokenId> order(logprobs.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(
        order, std::ranges::greater(), [&](TokenId token) { return logprobs[id(token)]; });
    return order;
  }
  std::vector<Sequence> best_of(std::vector<Sequence> all) {
    std::ranges::stable_sort(all, std::ranges::greater(), &Sequence::score);
    const auto width = static_cast<size_t>(limits_.width);
    for (size_t i = 0; i + 1 < all.size() && i < width; ++i) {
      note_gap(all[i].score, all[i + 1].score);
    }
    all.resize(std::min(all.size(), width));
    return all;
  }
  void note_gap(double more, double less) { closest = std::min(closest, more - less); }

  test::DecoderOracle oracle_;
  BeamLimits limits_;
};

// A Llama of two layers with random weights over the toy vocabulary.
class TinyModel {
 public:
  TinyModel() {
    test::OracleLayer layer;
    layer.num_heads = 6;
    layer.num_kv_heads = 2;
    layer.head_dim = layer.rot_dim = 8;
    layer.theta = 10000.0;
    layer.scale = 1.0 / std::sqrt(8.0);
    layer.intermediate = 56;
    oracle.hidden = 48;
    oracle.vocab = kToyVocab;
    oracle.eps = 1e-5;
    oracle.layers = {layer, layer};
    test::RandomCheckpoint checkpoint(oracle, 7);
    checkpoint.add_ends(false);
    checkpoint.add_layer(0, {});
    checkpoint.add_layer(1, {});
    const nlohmann::json config = {{"model_type", "llama"},
                                   {"architectures", {"LlamaForCausalLM"}},
                                   {"hidden_act", "silu"},
                                   {"head_dim", layer.head_dim},
                                   {"num_attention_heads", layer.num_heads},
                                   {"num_key_value_heads", layer.num_kv_heads},
                                   {"num_hidden_layers", 2},
                                   {"hidden_size", oracle.hidden},
                                   {"intermediate_size", layer.intermediate},
                                   {"vocab_size", oracle.vocab},
                                   {"max_position_embeddings", 256},
                                   {"rms_norm_eps", oracle.eps},
                                   {"rope_theta", layer.theta},
                                   {"tie_word_embeddings", false}};
    dir_.write("config.json", config.dump());
    dir_.write("model.safetensors", checkpoint.bytes());
  }

  [[nodiscard]] std::unique_ptr<Engine> engine() const {
    EngineConfig config;
    config.model = dir_.path().string();
    config.device = "cpu";
    config.dtype = "float32";
    config.max_num_seqs = 8;
    config.kv_cache_memory_bytes = 1 << 20;
    config.threads = 1;
    return make_engine(config, testing::make_toy_text(), make_executor(config));
  }

  test::OracleModel oracle;

 private:
  test::TempDir dir_;
};

std::vector<TokenId> prompt(int32_t seed) {
  std::vector<TokenId> ids;
  for (int32_t i = 0; i < kPromptLen; ++i) {
    ids.push_back(1 + (i * i * 7 + i * seed + seed) % (kToyVocab - 1));
  }
  return ids;
}

void expect_equal(const RequestUpdate& update, const Sequence& expected) {
  const std::vector<TokenId> ids(expected.ids.begin() + kPromptLen, expected.ids.end());
  EXPECT_EQ(update.token_ids, ids);
  double sum = 0;
  ASSERT_EQ(update.logprobs.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(update.logprobs[i].token_id, ids[i]);
    const auto& top = update.logprobs[i].top;
    EXPECT_EQ(top.at(static_cast<size_t>(update.logprobs[i].rank) - 1).token_id, ids[i]);
    sum += double{update.logprobs[i].logprob};
  }
  EXPECT_NEAR(sum, expected.cum_logprob, 1e-3);
  const bool ended = ids.back() == kToyEos;
  EXPECT_EQ(update.finish_reason, ended ? FinishReason::kStop : FinishReason::kLength);
}

TEST(BeamSearch, EqualsAReferenceInDoubles) {
  const TinyModel model;
  const std::unique_ptr<Engine> engine = model.engine();
  size_t num_ended = 0;
  int32_t seed = 2;
  for (const BeamLimits& limits : {BeamLimits{.width = 4, .max_tokens = 10},
                                   BeamLimits{.width = 1, .max_tokens = 4},
                                   BeamLimits{.width = 3, .max_tokens = 6, .length_penalty = 0},
                                   BeamLimits{.width = 10, .max_tokens = 3, .ignore_eos = true},
                                   BeamLimits{.width = 30, .max_tokens = 3}}) {
    ++seed;
    SCOPED_TRACE(fmt::format("width {} seed {}", limits.width, seed));
    Reference reference(model.oracle, limits);
    const std::vector<Sequence> expected = reference.search(prompt(seed));
    ASSERT_GT(reference.closest, 1e-5);  // else rounding may decide
    num_ended += reference.num_ended;
    GenerationRequest request = greedy_request(prompt(seed), limits.max_tokens);
    request.sampling.ignore_eos = limits.ignore_eos;
    const auto search =
        value_or_throw(BeamSearch::make(*engine, request, {limits.width, limits.length_penalty}));
    Choices choices(static_cast<size_t>(limits.width));
    search->start(choices.on_choice());
    const std::vector<RequestUpdate>& updates = choices.wait();
    ASSERT_EQ(updates.size(), expected.size());
    for (size_t i = 0; i < updates.size(); ++i) {
      SCOPED_TRACE(i);
      expect_equal(updates[i], expected[i]);
    }
  }
  EXPECT_GT(num_ended, 1U);
  EXPECT_GT(engine->stats().prefix_hit_tokens, 500);
}

// Each step computes one token of each sequence: the rest of its last block is copied.
TEST(BeamSearch, StepsComputeOneTokenOfEachSequence) {
  FakeModel model;
  auto executor = std::make_unique<testing::FakeExecutor>(model);
  const testing::FakeExecutor& toy = *executor;
  const std::unique_ptr<Engine> engine =
      make_engine({}, testing::make_toy_text(), std::move(executor));
  GenerationRequest request = greedy_request({9, 3, 4, 7, 8}, 40);
  request.sampling.ignore_eos = true;
  Choices choices(3);
  value_or_throw(BeamSearch::make(*engine, request, {.width = 3}))->start(choices.on_choice());
  choices.wait();
  const EngineStats stats = engine->stats();
  EXPECT_GT(toy.num_block_copies(), 100);
  EXPECT_EQ(stats.prompt_tokens - stats.prefix_hit_tokens, 5 + 3 * 39);
}

TEST(BeamSearch, AnAbortEndsEveryChoice) {
  FakeModel model;
  std::atomic<bool> shut = true;
  model.gate_shut = &shut;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  const auto search =
      value_or_throw(BeamSearch::make(*engine, greedy_request({9, 3, 4}, 50), {.width = 4}));
  search->abort();  // it does not run yet
  Choices choices(4);
  search->start(choices.on_choice());
  search->abort();
  shut = false;
  for (const RequestUpdate& update : choices.wait()) {
    EXPECT_EQ(update.finish_reason, FinishReason::kAbort);
    EXPECT_TRUE(update.token_ids.empty());
  }
  search->abort();
  EXPECT_TRUE(choices.each_once());
}

TEST(BeamSearch, TheEnginesEndEndsEveryChoice) {
  Choices choices(4);
  {
    FakeModel model;
    model.step_time = std::chrono::milliseconds(100);  // of a hundred steps
    const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
    GenerationRequest request = greedy_request({9, 3, 4}, 100);
    request.sampling.ignore_eos = true;
    value_or_throw(BeamSearch::make(*engine, request, {.width = 4}))->start(choices.on_choice());
  }
  for (const RequestUpdate& update : choices.wait()) {
    EXPECT_EQ(update.finish_reason, FinishReason::kAbort);
  }
  EXPECT_TRUE(choices.each_once());
}

TEST(BeamSearch, TheModelsLengthEndsIt) {
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  GenerationRequest request = greedy_request(std::vector<TokenId>(120, 9), 50);
  request.sampling.ignore_eos = true;
  Choices choices(2);
  value_or_throw(BeamSearch::make(*engine, request, {.width = 2}))->start(choices.on_choice());
  for (const RequestUpdate& update : choices.wait()) {
    EXPECT_EQ(update.token_ids.size(), 8U);  // of 128
  }
}

TEST(BeamSearch, Refusals) {
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  const auto refusal = [&](BeamOptions options, auto change) {
    GenerationRequest request = greedy_request({9, 3, 4}, 5);
    change(request.sampling);
    const auto made = BeamSearch::make(*engine, request, options);
    return made ? std::string("made") : made.error().message;
  };
  const auto nothing = [](SamplingOptions&) {};
  EXPECT_EQ(refusal({.width = 0}, nothing), "beam_width: 0 is outside [1, 32]");
  EXPECT_EQ(refusal({.width = 33}, nothing), "beam_width: 33 is outside [1, 32]");
  EXPECT_EQ(refusal({.width = 2, .length_penalty = 101}, nothing),
            "length_penalty: 101 is outside [-100, 100]");
  const auto several = [](SamplingOptions& options) { options.n = 2; };
  EXPECT_EQ(refusal({.width = 2}, several), "n: a beam search has none");
  const auto top_p = [](SamplingOptions& options) { options.top_p = 0.5; };
  EXPECT_EQ(refusal({.width = 2}, top_p), "top_p: a beam search has none");
  const auto none = [](SamplingOptions& options) { options.max_tokens = 0; };
  EXPECT_EQ(refusal({.width = 2}, none), "max_tokens: 0 must be 1 or more");
  const auto hot = [](SamplingOptions& options) { options.temperature = 3; };
  EXPECT_EQ(refusal({.width = 2}, hot), "temperature: 3 is outside [0, 2]");
  EXPECT_EQ(refusal({.width = 32}, nothing), "made");
}

}  // namespace
}  // namespace warprow
