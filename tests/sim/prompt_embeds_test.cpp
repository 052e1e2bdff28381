// SPDX-License-Identifier: Apache-2.0
// Prompts given as embeddings: the model's own embedding rows of some ids must give the same result as the ids.
#include "base/dtype.h"
#include "tests/support/model_rig.h"
#include "tests/support/random_model.h"
#include "tests/support/temp_dir.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using test::ModelRig;
using test::RandomModel;
using test::RigOptions;

constexpr int32_t kHidden = 256;

// The bf16 embedding matrix [vocab, kHidden] in the checkpoint's layout.
std::vector<uint8_t> embedding_bytes(const std::string& dir) {
  std::ifstream file(dir + "/model.safetensors", std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  uint64_t header_len = 0;
  std::memcpy(&header_len, bytes.data(), 8);
  const auto begin = bytes.begin() + 8;
  const auto data = begin + static_cast<std::ptrdiff_t>(header_len);
  const auto header = nlohmann::json::parse(begin, data);
  const auto& offsets = header.at("model.embed_tokens.weight").at("data_offsets");
  return {data + offsets[0].get<std::ptrdiff_t>(), data + offsets[1].get<std::ptrdiff_t>()};
}

// Removes ids of new rows with an even prompt length, all or every third one, and sets their embedding rows instead.
class IdsToVectors {
 public:
  explicit IdsToVectors(std::vector<uint8_t> matrix) : matrix_(std::move(matrix)) {}

  void operator()(SchedulerOutput& step) {
    step.embeddings.width = kHidden;
    for (NewRow& row : step.new_rows) {
      if (row.prompt_len % 2 != 0) {
        continue;
      }
      row.embeds.begin = static_cast<int32_t>(step.embeddings.num_vectors());
      const int32_t stride = row.prompt_len % 4 == 0 ? 1 : 3;
      for (int32_t i = 0; i < row.prompt_len; i += stride) {
        TokenId& id = step.token_ids[static_cast<size_t>(row.tokens.begin + i)];
        add_vector(id, step.embeddings.values);
        id = -1;
        ++row.embeds.count;
      }
      num_replaced += row.embeds.count;
    }
  }
  int32_t num_replaced = 0;

 private:
  void add_vector(TokenId id, std::vector<float>& to) const {
    const uint8_t* from = matrix_.data() + static_cast<size_t>(id) * kHidden * 2;
    for (int32_t i = 0; i < kHidden; ++i) {
      uint16_t half = 0;
      std::memcpy(&half, from + i * 2, 2);
      to.push_back(bf16_to_f32(half));
    }
  }

  std::vector<uint8_t> matrix_;
};

std::map<uint64_t, test::RigResult> run_embeds(const RigOptions& options) {
  ModelRig rig(options);
  for (int32_t i = 0; i < 10; ++i) {
    Request request;
    request.id = static_cast<uint64_t>(i);
    for (int32_t t = 0; t < 3 + 7 * i; ++t) {
      request.prompt.push_back((i * 31 + t * 17) % 512);
    }
    request.max_tokens = 12;
    request.params.num_logprobs = 1;
    if (i % 3 == 1) {  // frequency_penalty counts only the output, so a prompt without ids is valid
      request.params.frequency_penalty = 0.5F;
    }
    rig.add(request);
  }
  rig.run();
  EXPECT_GT(rig.scheduler().stats().num_mixed_steps, 0);
  EXPECT_GT(rig.scheduler().stats().num_partial_prefill_steps, 0);
  return rig.results();
}

class PromptEmbedsSim : public ::testing::TestWithParam<const char*> {};

TEST_P(PromptEmbedsSim, VectorsOfIdsGiveWhatTheIdsGive) {
  const test::TempDir dir;
  RigOptions options;
  options.config.model = RandomModel{.hidden_size = kHidden}.write(dir);
  options.config.kv_cache_memory_bytes = int64_t{8} << 20;
  options.config.max_model_len = 128;
  options.config.max_num_seqs = 8;
  options.config.max_num_batched_tokens = 16;
  options.config.enable_prefix_caching = false;
  options.config.cudagraph_mode = GetParam();
  options.config.threads = options.device.num_threads = 1;
  const auto expected = run_embeds(options);
  IdsToVectors edit(embedding_bytes(dir.path().string()));
  options.config.enable_prompt_embeds = true;
  options.edit_step = std::ref(edit);
  const auto results = run_embeds(options);
  EXPECT_GT(edit.num_replaced, 50);
  for (const auto& [id, result] : expected) {
    EXPECT_EQ(results.at(id).tokens, result.tokens) << "request " << id;
    ASSERT_EQ(results.at(id).logprobs.size(), result.logprobs.size());
    for (size_t i = 0; i < result.logprobs.size(); ++i) {
      EXPECT_EQ(results.at(id).logprobs[i].logprob, result.logprobs[i].logprob);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Graphs, PromptEmbedsSim, ::testing::Values("none", "full", "piecewise"));

}  // namespace
}  // namespace warprow
