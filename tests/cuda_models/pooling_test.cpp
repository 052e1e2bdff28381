// SPDX-License-Identifier: Apache-2.0
// Pooling models on CUDA, encoders and decoders: in float32 against transformers, in bf16 against the CPU in float32, and
// texts together against each alone.
#include "device/cuda_device.h"
#include "tests/support/pooling_rig.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_golden.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::pooling_request;
using test::run_pooling;
using test::start_engine;

class CudaPooling : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const cuda::Availability found = cuda::find_device(); !found.why_not.empty()) {
      GTEST_SKIP() << found.why_not;
    }
  }
};

TEST_F(CudaPooling, Float32EqualsTransformers) {
  for (const char* model : {"embed_bert",
                            "classify_bert",
                            "embed_xlmr",
                            "rank_xlmr",
                            "embed_modernbert",
                            "rank_modernbert",
                            "embed_nomic",
                            "embed_qwen3",
                            "embed_mistral",
                            "classify_llama",
                            "judge_qwen3"}) {
    SCOPED_TRACE(model);
    EngineConfig config = test::tiny_options(model).config;
    config.device = "cuda";
    config.max_num_batched_tokens = 128;
    const auto engine = start_engine(config);
    std::vector<PoolingRequest> requests;
    const nlohmann::json prompts = test::tiny_prompts(model);
    for (const auto& prompt : prompts) {
      requests.push_back(
          pooling_request(prompt["ids"].get<std::vector<TokenId>>(), test::second_segment(prompt)));
    }
    const auto vectors = run_pooling(*engine, requests);
    for (size_t i = 0; i < vectors.size(); ++i) {
      const auto wanted = prompts[i]["vector"].get<std::vector<float>>();
      ASSERT_EQ(vectors[i].size(), wanted.size());
      for (size_t j = 0; j < wanted.size(); ++j) {
        EXPECT_NEAR(vectors[i][j], wanted[j], 1e-4) << i << ", " << j;
      }
    }
  }
}

// Models with heads that bf16 kernels have, and with some that are widened.
const nlohmann::json kModels[] = {
    {{"architectures", {"BertModel"}},
     {"hidden_size", 384},
     {"num_hidden_layers", 3},
     {"num_attention_heads", 6},
     {"intermediate_size", 1536},
     {"vocab_size", 2000},
     {"max_position_embeddings", 512}},
    {{"architectures", {"BertModel"}},
     {"hidden_size", 384},
     {"num_hidden_layers", 2},
     {"num_attention_heads", 12},
     {"intermediate_size", 1536},
     {"vocab_size", 2000},
     {"max_position_embeddings", 512}},
    {{"architectures", {"ModernBertModel"}},
     {"hidden_size", 384},
     {"num_hidden_layers", 4},
     {"num_attention_heads", 6},
     {"intermediate_size", 576},
     {"local_attention", 64},
     {"vocab_size", 2000},
     {"max_position_embeddings", 512}},
    {{"architectures", {"NomicBertModel"}},
     {"n_embd", 384},
     {"n_layer", 2},
     {"n_head", 6},
     {"n_inner", 768},
     {"rotary_emb_fraction", 1.0},
     {"vocab_size", 2000},
     {"n_positions", 512}},
    {{"architectures", {"Qwen3Model"}},
     {"hidden_size", 256},
     {"num_hidden_layers", 3},
     {"num_attention_heads", 4},
     {"num_key_value_heads", 2},
     {"head_dim", 64},
     {"intermediate_size", 512},
     {"vocab_size", 2000},
     {"rms_norm_eps", 1e-6},
     {"max_position_embeddings", 512}},
};

std::vector<PoolingRequest> mixed_requests() {
  std::mt19937 random(9);
  std::vector<PoolingRequest> requests;
  for (const size_t length : {1, 2, 7, 63, 64, 65, 127, 128, 129, 200, 255, 256, 300, 511, 512}) {
    std::vector<TokenId> ids(length);
    std::ranges::generate(ids, [&] { return static_cast<TokenId>(5 + random() % 1990); });
    requests.push_back(pooling_request(ids, static_cast<int32_t>(length / 2)));
  }
  return requests;
}

TEST_F(CudaPooling, Bf16IsNearFloat32AndABatchEqualsOneByOne) {
  const std::vector<PoolingRequest> requests = mixed_requests();
  for (const nlohmann::json& model : kModels) {
    SCOPED_TRACE(model.dump());
    const test::TempDir dir;
    dir.write("config.json", model.dump());
    EngineConfig config;
    config.model = dir.path().string();
    config.load_format = "dummy";
    config.max_num_batched_tokens = 1024;
    config.max_num_seqs = 16;
    config.kv_cache_memory_bytes = int64_t{32} << 20;
    config.device = "cpu";
    config.dtype = "float32";
    const auto exact = run_pooling(*start_engine(config), requests);
    config.device = "cuda";
    config.dtype = "auto";
    const auto together = run_pooling(*start_engine(config), requests);
    config.max_num_seqs = 1;
    const auto single = start_engine(config);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_GT(cosine(together[i], exact[i]), 0.999) << i;
      EXPECT_EQ(together[i], run_pooling(*single, requests[i])) << i;
    }
  }
}

}  // namespace
}  // namespace warprow
