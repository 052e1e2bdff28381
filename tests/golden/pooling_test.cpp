// SPDX-License-Identifier: Apache-2.0
// Tiny random pooling models against transformers in float32, through the engine. Data: tools/gen/make_pooling_models.py.
#include "engine/pooling.h"

#include "engine/engine.h"
#include "executor/make_executor.h"
#include "tests/support/serializing_executor.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_golden.h"
#include "text/byte_text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using Ids = std::vector<TokenId>;
using ::testing::HasSubstr;

EngineConfig pooling_config(const std::string& model) {
  EngineConfig config = test::tiny_options(model).config;
  config.device = "cpu";
  return config;
}

std::unique_ptr<Engine> start(const EngineConfig& config, bool serialised = false) {
  std::unique_ptr<Executor> executor = make_executor(config);
  if (serialised) {
    executor = std::make_unique<test::SerializingExecutor>(std::move(executor));
  }
  return make_engine(config, value_or_throw(make_byte_text()), std::move(executor));
}

PoolingRequest request_of(const Ids& ids) {
  PoolingRequest request;
  request.prompt = ids;
  return request;
}

// Submits all requests at once. The updates that end them, in their order.
std::vector<RequestUpdate> run_pooling(Engine& engine,
                                       const std::vector<PoolingRequest>& requests) {
  std::vector<std::promise<RequestUpdate>> ends(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    engine.submit(value_or_throw(engine.validate_pooling(requests[i])),
                  [&end = ends[i]](const RequestUpdate& update) {
                    if (update.finish_reason != FinishReason::kNone) {
                      end.set_value(update);
                    }
                  });
  }
  std::vector<RequestUpdate> out;
  for (std::promise<RequestUpdate>& end : ends) {
    out.push_back(end.get_future().get());
  }
  return out;
}

std::vector<float> pooled_vector_of(Engine& engine, const Ids& ids) {
  return run_pooling(engine, {request_of(ids)}).front().pooled;
}

void expect_near_values(const std::vector<float>& got, const std::vector<float>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], wanted[i], 1e-4) << i;
  }
  EXPECT_GT(cosine(got, wanted), 0.99999);
}

struct PoolingCase {
  const char* model;
  int32_t max_num_batched_tokens;
};

class PoolingModel : public ::testing::TestWithParam<PoolingCase> {};

// With 8 tokens a step the longest prompt comes in six chunks.
TEST_P(PoolingModel, EqualsTransformers) {
  const PoolingCase& test_case = GetParam();
  EngineConfig config = pooling_config(test_case.model);
  config.max_num_batched_tokens = test_case.max_num_batched_tokens;
  const auto engine = start(config, /*serialised=*/true);
  std::vector<PoolingRequest> requests;
  const nlohmann::json prompts = test::tiny_prompts(test_case.model);
  for (const auto& prompt : prompts) {
    requests.push_back(request_of(prompt["ids"].get<Ids>()));
  }
  const std::vector<RequestUpdate> updates = run_pooling(*engine, requests);
  for (size_t i = 0; i < updates.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(updates[i].finish_reason, FinishReason::kStop);
    EXPECT_TRUE(updates[i].token_ids.empty());
    EXPECT_EQ(updates[i].num_prompt_tokens, static_cast<int32_t>(prompts[i]["ids"].size()));
    EXPECT_EQ(updates[i].pooled_width, engine->model_facts().pooling.width);
    expect_near_values(updates[i].pooled, prompts[i]["vector"].get<std::vector<float>>());
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         PoolingModel,
                         ::testing::Values(PoolingCase{"embed_qwen3", 64},
                                           PoolingCase{"embed_qwen3", 8},
                                           PoolingCase{"embed_mistral", 64},
                                           PoolingCase{"embed_mistral", 8},
                                           PoolingCase{"classify_llama", 64},
                                           PoolingCase{"classify_llama", 8},
                                           PoolingCase{"judge_qwen3", 64},
                                           PoolingCase{"judge_qwen3", 8}),
                         [](const auto& test_case) {
                           return std::string(test_case.param.model) + "_" +
                                  std::to_string(test_case.param.max_num_batched_tokens);
                         });

std::vector<Ids> mixed_prompts(size_t count, int32_t most) {
  std::mt19937 random(7);
  std::vector<Ids> prompts;
  for (size_t i = 0; i < count; ++i) {
    Ids ids(1 + random() % static_cast<uint32_t>(most));
    std::ranges::generate(ids, [&] { return static_cast<TokenId>(5 + random() % 95); });
    if (i % 4 == 3) {  // goes on from another, for the prefix cache
      ids.insert(ids.begin(), prompts[i - 1].begin(), prompts[i - 1].end());
    }
    prompts.push_back(ids);
  }
  return prompts;
}

// Alone, without a cache, in whole chunks; and in a crowd, with a cache, chunks and preemptions.
TEST(Pooling, ABatchEqualsOneByOneBitForBit) {
  for (const char* model : {"embed_qwen3", "embed_mistral", "classify_llama"}) {
    SCOPED_TRACE(model);
    const std::vector<Ids> prompts = mixed_prompts(64, 60);
    EngineConfig alone = pooling_config(model);
    alone.max_num_batched_tokens = 128;
    alone.enable_prefix_caching = false;
    EngineConfig crowd = pooling_config(model);
    crowd.max_num_batched_tokens = 24;
    crowd.kv_cache_memory_bytes = 1 << 17;
    crowd.threads = 2;
    const auto single = start(alone);
    const auto batch = start(crowd);
    std::vector<PoolingRequest> requests;
    for (const Ids& ids : prompts) {
      requests.push_back(request_of(ids));
    }
    const std::vector<RequestUpdate> together = run_pooling(*batch, requests);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(together[i].pooled, pooled_vector_of(*single, prompts[i])) << i;
    }
    const EngineStats stats = batch->stats();
    EXPECT_GT(stats.partial_prefill_steps, 0);
    EXPECT_LT(stats.steps, single->stats().steps * 4);
    // A mean needs every token computed.
    if (std::string(model) == "embed_qwen3") {
      EXPECT_GT(stats.prefix_hit_tokens, 0);
    } else if (std::string(model) == "embed_mistral") {
      EXPECT_EQ(stats.prefix_hit_tokens, 0);
    }
  }
}

TEST(Pooling, AVectorForEachToken) {
  EngineConfig config = pooling_config("embed_qwen3");
  config.max_num_batched_tokens = 16;
  const auto engine = start(config);
  const nlohmann::json prompt = test::tiny_prompts("embed_qwen3")[2];
  PoolingRequest request = request_of(prompt["ids"].get<Ids>());
  request.of_tokens = true;
  request.normalize = false;
  const RequestUpdate update = run_pooling(*engine, {request}).front();
  std::vector<float> wanted;
  for (const auto& row : prompt["hidden"]) {
    for (const auto& value : row) {
      wanted.push_back(value.get<float>());
    }
  }
  expect_near_values(update.pooled, wanted);
}

// Another pooling than the files', in a copy of them.
TEST(Pooling, FirstTokenMeanAndUnknownKinds) {
  const test::TempDir dir;
  const std::filesystem::path model = dir.path() / "model";
  std::filesystem::copy(
      test::tiny_dir("embed_qwen3"), model, std::filesystem::copy_options::recursive);
  const auto set_mode = [&](const std::string& mode) {
    std::ofstream(model / "1_Pooling" / "config.json") << R"({"pooling_mode": ")" << mode << "\"}";
  };
  EngineConfig config = pooling_config("embed_qwen3");
  config.model = model.string();
  const nlohmann::json prompt = test::tiny_prompts("embed_qwen3")[1];
  const auto hidden = prompt["hidden"].get<std::vector<std::vector<float>>>();
  std::vector<float> mean(hidden.front().size());
  for (const std::vector<float>& row : hidden) {
    for (size_t i = 0; i < row.size(); ++i) {
      mean[i] += row[i] / static_cast<float>(hidden.size());
    }
  }
  const VectorForm normalized{.normalize = true};
  for (const auto& [mode, raw] : std::map<std::string, std::vector<float>>{
           {"cls", hidden.front()}, {"lasttoken", hidden.back()}, {"mean", mean}}) {
    SCOPED_TRACE(mode);
    set_mode(mode);
    std::vector<float> wanted;
    append_vector(raw, normalized, wanted);
    expect_near_values(pooled_vector_of(*start(config), prompt["ids"].get<Ids>()), wanted);
  }
  for (const char* mode : {"max", "weightedmean"}) {
    set_mode(mode);
    const auto plan = plan_model(config, this_machine());
    ASSERT_FALSE(plan.has_value());
    EXPECT_EQ(plan.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(plan.error().message, HasSubstr(mode));
  }
}

// sentence-transformers' form of a reranker that answers yes or no. Its ids go before config.json's words.
TEST(Pooling, ALogitScoreNamesItsTokens) {
  const test::TempDir dir;
  const std::filesystem::path model = dir.path() / "model";
  std::filesystem::copy(
      test::tiny_dir("judge_qwen3"), model, std::filesystem::copy_options::recursive);
  dir.write("model/modules.json",
            R"([{"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
                {"path": "1_LogitScore",
                 "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}])");
  EngineConfig config = pooling_config("judge_qwen3");
  config.model = model.string();
  const nlohmann::json prompt = test::tiny_prompts("judge_qwen3")[1];
  const auto ids = prompt["ids"].get<Ids>();
  const float yes = prompt["vector"][0].get<float>();
  dir.write("model/1_LogitScore/config.json", R"({"true_token_id": 3, "false_token_id": 4})");
  EXPECT_NEAR(pooled_vector_of(*start(config), ids).at(0), yes, 1e-4);
  dir.write("model/1_LogitScore/config.json", R"({"true_token_id": 4, "false_token_id": 3})");
  EXPECT_NEAR(pooled_vector_of(*start(config), ids).at(0), 1 - yes, 1e-4);
  dir.write("model/1_LogitScore/config.json", R"({"true_token_id": 500, "false_token_id": null})");
  const auto plan = plan_model(config, this_machine());
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(plan.error().message, HasSubstr("no row 500"));
}

TEST(Pooling, DimensionsAreCutBeforeTheNorm) {
  const auto engine = start(pooling_config("embed_qwen3"));
  const Ids ids{7, 8, 9};
  PoolingRequest request = request_of(ids);
  request.normalize = false;
  std::vector<float> raw = run_pooling(*engine, {request}).front().pooled;
  request.normalize = true;
  request.dimensions = 12;
  raw.resize(12);
  std::vector<float> wanted;
  append_vector(raw, {.normalize = true}, wanted);
  EXPECT_EQ(run_pooling(*engine, {request}).front().pooled, wanted);
  EXPECT_NEAR(cosine(wanted, wanted), 1.0, 1e-6);
  for (const int64_t size : {int64_t{0}, int64_t{33}, int64_t{-1}}) {
    request.dimensions = size;
    const auto refused = engine->validate_pooling(request);
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().message, HasSubstr("dimensions: " + std::to_string(size)));
  }
}

// A prompt may have all of max_model_len, in one chunk or several; here it is sentence-transformers' limit.
TEST(Pooling, APromptOfTheWholeLength) {
  for (const int32_t budget : {128, 48}) {
    EngineConfig config = pooling_config("embed_mistral");
    config.max_num_batched_tokens = budget;
    const auto engine = start(config);
    ASSERT_EQ(engine->model_facts().max_model_len, 128);
    const Ids ids(128, 11);
    EXPECT_EQ(pooled_vector_of(*engine, ids).size(), 24U);
    const auto refused = engine->validate_pooling(request_of(Ids(129, 11)));
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().message, HasSubstr("129 tokens are too many"));
  }
}

TEST(Pooling, EachRunnerRefusesTheOthersRequests) {
  const auto pooling = start(pooling_config("embed_qwen3"));
  GenerationRequest text;
  text.prompt = Ids{7};
  const auto refused = pooling->validate(text);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("yields embeddings and no text"));
  PoolingRequest classes = request_of({7});
  classes.task = PoolingTask::kClassify;
  EXPECT_EQ(pooling->validate_pooling(classes).error().code, ErrorCode::kUnsupported);

  EngineConfig config = pooling_config("judge_qwen3");
  config.runner = "generate";
  const auto generating = start(config);
  EXPECT_TRUE(generating->validate(text).has_value());
  const auto no_vector = generating->validate_pooling(request_of({7}));
  ASSERT_FALSE(no_vector.has_value());
  EXPECT_THAT(no_vector.error().message, HasSubstr("--runner pooling"));

  config = pooling_config("embed_qwen3");
  config.runner = "generate";
  const auto headless = plan_model(config, this_machine());
  ASSERT_FALSE(headless.has_value());
  EXPECT_THAT(headless.error().message, HasSubstr("Qwen3Model has no head"));
}

// A model that generates pools its last token when it is told to.
TEST(Pooling, AGeneratorBecomesAnEmbedder) {
  EngineConfig config = pooling_config("qwen3");
  config.runner = "pooling";
  const auto engine = start(config);
  EXPECT_EQ(engine->model_facts().pooling.method, PoolingMethod::kLast);
  const std::vector<float> vector = pooled_vector_of(*engine, {7, 8});
  ASSERT_EQ(vector.size(), 32U);
  double squares = 0;
  for (const float value : vector) {
    squares += double{value} * double{value};
  }
  EXPECT_NEAR(squares, 1.0, 1e-5);
}

}  // namespace
}  // namespace warprow
