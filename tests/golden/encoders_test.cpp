// SPDX-License-Identifier: Apache-2.0
// Tiny random encoders against transformers in float32, through the engine. Data: tools/gen/make_encoder_models.py.
#include "tests/support/pooling_rig.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_golden.h"
#include "text/hf_text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using Ids = std::vector<TokenId>;
using test::pooling_request;
using test::run_pooling;
using test::second_segment;
using test::start_engine;
using ::testing::HasSubstr;

constexpr const char* kModels[] = {"embed_bert",
                                   "classify_bert",
                                   "embed_xlmr",
                                   "rank_xlmr",
                                   "embed_modernbert",
                                   "rank_modernbert",
                                   "embed_nomic"};

EngineConfig tiny_config(const std::string& model, int32_t max_num_batched_tokens = 128) {
  EngineConfig config = test::tiny_options(model).config;
  config.device = "cpu";
  config.kv_cache_memory_bytes = 0;
  config.max_num_batched_tokens = max_num_batched_tokens;
  return config;
}

std::vector<float> vector_of(Engine& engine, const Ids& ids) {
  return run_pooling(engine, pooling_request(ids));
}

class EncoderModel : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, EncoderModel, ::testing::ValuesIn(kModels), [](const auto& model) {
  return std::string(model.param);
});

TEST_P(EncoderModel, EqualsTransformers) {
  const auto engine = start_engine(tiny_config(GetParam()), /*serialised=*/true);
  std::vector<PoolingRequest> requests;
  const nlohmann::json prompts = test::tiny_prompts(GetParam());
  for (const auto& prompt : prompts) {
    requests.push_back(pooling_request(prompt["ids"].get<Ids>(), second_segment(prompt)));
  }
  const std::vector<std::vector<float>> vectors = run_pooling(*engine, requests);
  for (size_t i = 0; i < vectors.size(); ++i) {
    SCOPED_TRACE(i);
    const auto wanted = prompts[i]["vector"].get<std::vector<float>>();
    ASSERT_EQ(vectors[i].size(), wanted.size());
    for (size_t j = 0; j < wanted.size(); ++j) {
      EXPECT_NEAR(vectors[i][j], wanted[j], 1e-4) << j;
    }
    EXPECT_GT(cosine(vectors[i], wanted), 0.99999);
  }
}

TEST_P(EncoderModel, TextsHaveTheTokensOfTransformers) {
  const auto text = value_or_throw(load_hf_text(test::tiny_dir(GetParam())));
  int count = 0;
  for (const auto& prompt : test::tiny_prompts(GetParam())) {
    if (!prompt.contains("text")) {
      continue;
    }
    ++count;
    if (prompt["text"].is_string()) {
      EXPECT_EQ(text->tokenizer.encode(prompt["text"].get<std::string>(), true),
                prompt["ids"].get<Ids>());
      continue;
    }
    const auto pair = value_or_throw(text->tokenizer.encode_pair(
        prompt["text"][0].get<std::string>(), prompt["text"][1].get<std::string>()));
    EXPECT_EQ(pair.ids, prompt["ids"].get<Ids>());
    EXPECT_EQ(pair.second, second_segment(prompt));
  }
  EXPECT_GE(count, 3);
}

// Matrices of 128 inputs have wide groups here, others groups of 32.
TEST_P(EncoderModel, Int8WeightsAreNear) {
  EngineConfig config = tiny_config(GetParam());
  config.quantization = "int8";
  config.dtype = "auto";
  const auto engine = start_engine(config);
  for (const auto& prompt : test::tiny_prompts(GetParam())) {
    const std::vector<float> vector =
        run_pooling(*engine, pooling_request(prompt["ids"].get<Ids>(), second_segment(prompt)));
    const auto wanted = prompt["vector"].get<std::vector<float>>();
    ASSERT_EQ(vector.size(), wanted.size());
    EXPECT_NE(vector, wanted);
    for (size_t j = 0; j < wanted.size(); ++j) {
      EXPECT_NEAR(vector[j], wanted[j], 0.05) << j;
    }
  }
}

// Of a checkpoint without a tokenizer.json.
TEST(Encoders, VocabTxtGivesTheSameTokens) {
  const test::TempDir dir;
  const std::filesystem::path from = test::tiny_dir("embed_bert");
  std::filesystem::copy_file(from / "vocab.txt", dir.path() / "vocab.txt");
  const auto load = [&] { return load_hf_text(dir.path().string()); };
  const auto whole = value_or_throw(load_hf_text(from.string()));
  const auto text = value_or_throw(load());
  for (const char* a :
       {"", "Hello, world!", "it's 2026: CAF\u00c9 [MASK] zebra\n", "\u4f60 a\u0301b"}) {
    SCOPED_TRACE(a);
    EXPECT_EQ(text->tokenizer.encode(a, true), whole->tokenizer.encode(a, true));
    EXPECT_EQ(text->tokenizer.encode(a, false), whole->tokenizer.encode(a, false));
    const auto pair = value_or_throw(text->tokenizer.encode_pair(a, "cat"));
    const auto wanted = value_or_throw(whole->tokenizer.encode_pair(a, "cat"));
    EXPECT_EQ(pair.ids, wanted.ids);
    EXPECT_EQ(pair.second, wanted.second);
  }
  dir.write("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_NE(value_or_throw(load())->tokenizer.encode("Hello", true),
            whole->tokenizer.encode("Hello", true));
  dir.write("tokenizer_config.json", R"({"cls_token": {"content": "[BEGIN]"}})");
  const auto refused = load();
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("vocab.txt: no token '[BEGIN]'"));
}

TEST_P(EncoderModel, ABatchEqualsOneByOneBitForBit) {
  std::mt19937 random(7);
  std::vector<PoolingRequest> requests;
  for (int i = 0; i < 64; ++i) {
    Ids ids(1 + random() % 64);
    std::ranges::generate(ids, [&] { return static_cast<TokenId>(5 + random() % 85); });
    if (i % 4 == 3) {  // begins as another: nothing of it may be taken from a cache
      const Ids& other = std::get<Ids>(requests.back().prompt);
      std::copy_n(other.begin(), std::min(other.size(), ids.size()), ids.begin());
    }
    requests.push_back(pooling_request(ids, i % 2 == 0 ? static_cast<int32_t>(ids.size() / 2) : 0));
  }
  EngineConfig crowd = tiny_config(GetParam(), 256);
  crowd.max_num_seqs = 16;
  crowd.threads = 2;
  const auto batch = start_engine(crowd);
  const auto single = start_engine(tiny_config(GetParam()));
  const std::vector<std::vector<float>> together = run_pooling(*batch, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(together[i], run_pooling(*single, requests[i])) << i;
  }
  EXPECT_LT(batch->stats().steps, single->stats().steps);
  EXPECT_EQ(batch->stats().partial_prefill_steps, 0);
  EXPECT_EQ(batch->stats().prefix_hit_tokens, 0);
}

TEST(Encoders, SegmentsMatterWhereTheModelHasThem) {
  const auto engine = start_engine(tiny_config("embed_bert"));
  const Ids ids{7, 8, 9, 10};
  EXPECT_NE(run_pooling(*engine, pooling_request(ids, 2)), vector_of(*engine, ids));
  const auto one_segment = start_engine(tiny_config("embed_modernbert"));
  EXPECT_EQ(run_pooling(*one_segment, pooling_request(ids, 2)), vector_of(*one_segment, ids));
}

TEST(Encoders, PromptsAreWhole) {
  const auto engine = start_engine(tiny_config("embed_bert"));
  ASSERT_EQ(engine->model_facts().max_model_len, 64);  // sentence_bert_config.json's
  EXPECT_EQ(vector_of(*engine, Ids(64, 11)).size(), 32U);
  const auto refused = engine->validate_pooling(pooling_request(Ids(65, 11)));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("65 tokens are too many"));
  // A step must hold the longest prompt.
  const auto plan = plan_model(tiny_config("embed_bert", 32), this_machine());
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(plan.error().message, HasSubstr("--max-num-batched-tokens"));
}

TEST(Encoders, XlmRobertaHasAsManyPositionsAsRowsBehindThoseOfPadding) {
  EXPECT_EQ(start_engine(tiny_config("embed_xlmr"))->model_facts().max_model_len, 64);
}

TEST(Encoders, GenerateNothing) {
  const auto engine = start_engine(tiny_config("embed_bert"));
  GenerationRequest text;
  text.prompt = Ids{7};
  const auto refused = engine->validate(text);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EngineConfig config = tiny_config("embed_bert");
  config.runner = "generate";
  const auto plan = plan_model(config, this_machine());
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(plan.error().message, HasSubstr("BertModel has no head"));
}

// The tiny model with another config.json. The error that its plan is refused with.
std::string refusal(const std::string& name, const nlohmann::json& change) {
  const test::TempDir dir;
  const std::filesystem::path model = dir.path() / "model";
  std::filesystem::copy(test::tiny_dir(name), model, std::filesystem::copy_options::recursive);
  nlohmann::json config;
  std::ifstream(model / "config.json") >> config;
  config.update(change);
  std::ofstream(model / "config.json") << config;
  EngineConfig settings = tiny_config(name);
  settings.model = model.string();
  const auto plan = plan_model(settings, this_machine());
  return plan ? "" : plan.error().message;
}

TEST(Encoders, WhatIsNotSupportedIsRefusedByName) {
  EXPECT_EQ(refusal("embed_bert", {{"hidden_dropout_prob", 0.5}}), "");
  EXPECT_THAT(refusal("embed_bert", {{"position_embedding_type", "relative_key"}}),
              HasSubstr("position_embedding_type relative_key"));
  EXPECT_THAT(refusal("embed_bert", {{"is_decoder", true}}), HasSubstr("is_decoder"));
  EXPECT_THAT(refusal("embed_bert", {{"hidden_act", "relu"}}), HasSubstr("hidden_act relu"));
  EXPECT_THAT(refusal("embed_bert", {{"num_attention_heads", 5}}), HasSubstr("hidden_size 32"));
  EXPECT_THAT(refusal("embed_bert", {{"max_position_embeddings", 90}}),
              HasSubstr("position_embeddings"));
  EXPECT_THAT(refusal("embed_xlmr", {{"pad_token_id", 2147483647}}),
              HasSubstr("pad_token_id is 2147483647, expected a number from 0 on"));
  EXPECT_THAT(refusal("embed_nomic", {{"prenorm", true}}), HasSubstr("prenorm true"));
  EXPECT_THAT(refusal("rank_modernbert", {{"classifier_pooling", "max"}}),
              HasSubstr("classifier_pooling max"));
  EXPECT_THAT(refusal("classify_bert", {{"architectures", {"BertForTokenClassification"}}}),
              HasSubstr("BertForTokenClassification"));
}

TEST(Encoders, UnknownPoolingsAreRefusedByName) {
  const test::TempDir dir;
  const std::filesystem::path model = dir.path() / "model";
  std::filesystem::copy(
      test::tiny_dir("embed_bert"), model, std::filesystem::copy_options::recursive);
  std::ofstream(model / "1_Pooling" / "config.json") << R"({"pooling_mode": "max"})";
  EngineConfig config = tiny_config("embed_bert");
  config.model = model.string();
  const auto plan = plan_model(config, this_machine());
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(plan.error().message, HasSubstr("max"));
}

}  // namespace
}  // namespace warprow
